//! Counts the users of an object. An object that has users must not be destroyed.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

/// A counter in an object. It counts the other objects that use this object.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Number of users. The top bit is set if the object is destroyed.
    count: AtomicU32,
}

impl Uses {
    /// Adds a user. Returns false if the object is destroyed.
    pub(crate) fn begin(&self) -> bool {
        let more = |count: u32| (count & DESTROYED == 0).then(|| count + 1);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Adds a user like [`Uses::begin`], but returns an error that names the object.
    pub(crate) fn begin_of(&self, what: &str) -> Result<(), Error> {
        if self.begin() { Ok(()) } else { Err(destroyed(what)) }
    }

    /// Removes a user.
    pub(crate) fn end(&self) {
        let before = self.count.fetch_sub(1, Ordering::AcqRel);
        assert!(before & !DESTROYED > 0, "a use ends that had not begun");
    }

    /// Marks the object as destroyed. Returns an error if the object has users or is already
    /// destroyed.
    pub(crate) fn destroy(&self, what: &str) -> Result<(), Error> {
        match self.count.compare_exchange(0, DESTROYED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(count) if count & DESTROYED != 0 => Err(destroyed(what)),
            Err(count) => Err(Error::Busy(format!("{count} objects still use the {what}"))),
        }
    }

    /// Reverts [`Uses::destroy`], because a later step of the destruction has failed.
    pub(crate) fn revive(&self) {
        self.count.store(0, Ordering::Release);
    }

    /// Returns whether the object is destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.count.load(Ordering::Acquire) & DESTROYED != 0
    }
}

fn destroyed(what: &str) -> Error {
    Error::Invalid(format!("the {what} was destroyed"))
}

const DESTROYED: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_in_use_is_not_destroyed_and_a_destroyed_one_is_not_used() {
        let uses = Uses::default();
        assert!(uses.begin());
        assert!(matches!(uses.destroy("thing"), Err(Error::Busy(_))));
        uses.end();
        assert_eq!(uses.destroy("thing"), Ok(()));
        assert!(!uses.begin() && uses.is_destroyed());
        assert!(matches!(uses.destroy("thing"), Err(Error::Invalid(_))));
    }
}
