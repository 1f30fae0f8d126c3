//! A system that refuses a thread.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use crate::failure::{Exit, Failure, MORE_PROCESSES};

/// Runs this, and makes a failure of the panics by which runtimes end that get no thread: no interface of theirs returns an error.
pub(crate) fn or_failure<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let (print, own) = (panic::take_hook(), thread::current().id());
    panic::set_hook(Box::new(move |panic| {
        // The panic of another thread has no other message.
        if thread::current().id() != own || refusal(panic.payload()).is_none() {
            print(panic);
        }
    }));
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| match refusal(&*panic) {
        Some(why) => {
            Err(Failure::new(Exit::Other, "thread", why.to_owned(), Some(MORE_PROCESSES.to_owned())))
        }
        None => resume_unwind(panic),
    })
}

/// What such a panic says.
fn refusal(panic: &dyn Any) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).filter(|text| text.contains("spawn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_panics_stay() {
        let refused = |text: &str| or_failure::<()>(|| panic!("{text}")).unwrap_err().message;
        let text = "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)";
        assert_eq!(refused(text), text);
        assert!(catch_unwind(|| refused("another one")).is_err());
    }
}
