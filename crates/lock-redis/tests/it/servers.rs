//! Servers that refuse something, and their other users.

mod neighbours;
mod restricted;
