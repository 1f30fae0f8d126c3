//! How a server is reached, and the sessions there.

mod abort;
mod many;
mod names;
mod renegotiation;
mod rotation;
mod security;
mod sessions;
