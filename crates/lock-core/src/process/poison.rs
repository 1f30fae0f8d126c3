//! Mutexes whose poison does not matter: no code panics halfway through a change.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks it for readers.
pub fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks it for a writer.
pub fn write<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}
