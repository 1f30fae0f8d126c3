//! Masters that refuse something, and their other users.

mod full_memory;
mod neighbours;
mod rights;
