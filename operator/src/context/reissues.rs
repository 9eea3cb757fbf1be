//! How often auth keys may be made anew: a proxy whose keys all fail asks again and again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// One key in this time, once each replica has had one.
const INTERVAL: Duration = Duration::from_secs(30);

/// For each parent, until when the keys that it has had would last at that rate.
#[derive(Debug, Default)]
pub struct Reissues(Mutex<HashMap<String, Instant>>);

impl Reissues {
    /// Lets one key be made for a parent with so many replicas, or says how long to wait.
    pub fn take(&self, parent: &str, replicas: usize, now: Instant) -> Result<(), Duration> {
        let at_once = u32::try_from(replicas.max(1)).unwrap_or(u32::MAX);
        let room = INTERVAL.saturating_mul(at_once - 1);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = all.get(parent).map_or(now, |until| (*until).max(now));
        let wait = until.duration_since(now).saturating_sub(room);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        all.insert(parent.to_owned(), until + INTERVAL);
        Ok(())
    }

    /// The parent is gone.
    pub fn forget(&self, parent: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replica_has_one_at_once_and_then_there_is_one_each_half_minute() {
        let reissues = Reissues::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(reissues.take("a", 2, at(0)), Ok(()));
        assert_eq!(reissues.take("a", 2, at(0)), Ok(()));
        assert_eq!(reissues.take("a", 2, at(10)), Err(Duration::from_secs(20)));
        assert_eq!(reissues.take("b", 2, at(10)), Ok(()), "of its own");
        assert_eq!(reissues.take("a", 2, at(30)), Ok(()));
        assert_eq!(reissues.take("a", 2, at(31)), Err(Duration::from_secs(29)));
        // A quiet time is not saved up beyond one for each replica.
        for allowed in [true, true, false] {
            assert_eq!(reissues.take("a", 2, at(10_000)).is_ok(), allowed);
        }
        reissues.forget("a");
        assert_eq!(reissues.take("a", 0, at(10_000)), Ok(()));
        assert!(reissues.take("a", 0, at(10_000)).is_err());
    }
}
