//! What operators see and do, and the gates and tombstones of a migration.

mod breaking;
mod doctor;
mod gates;
mod inspect;
mod logs;
mod moved;
