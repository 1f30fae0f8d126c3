//! What is asked of the functions of the schema: alone, or with others that wait for a connection.

pub(crate) mod group;
pub(crate) mod order;
pub(crate) mod request;
pub(crate) mod value;
