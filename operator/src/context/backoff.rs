//! When to try again what failed: sooner the first time, later each time, never all at once.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

use crate::tailnet_api::Retry;

const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_mins(5);

/// The failures of each object since its last success.
#[derive(Debug, Default)]
pub struct Backoffs(Mutex<HashMap<String, ExponentialBackoff>>);

impl Backoffs {
    /// How long to wait after another failure of this object; `None` until it changes.
    pub fn after(&self, object: &str, retry: Retry) -> Option<Duration> {
        match retry {
            Retry::OnChange => None,
            Retry::After(pause) => Some(pause),
            Retry::Backoff => {
                let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let own = all.entry(object.to_owned()).or_insert_with(|| {
                    let builder = ExponentialBuilder::default().with_min_delay(FIRST);
                    builder.with_max_delay(LAST).without_max_times().with_jitter().build()
                });
                Some(own.next().unwrap_or(LAST))
            }
        }
    }

    /// It succeeded, or is gone.
    pub fn forget(&self, object: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_begin_anew_after_a_success() {
        let backoffs = Backoffs::default();
        let pause = || backoffs.after("a", Retry::Backoff).unwrap();
        let first = pause();
        assert!(first >= FIRST && first < FIRST * 2, "{first:?}");
        let pauses: Vec<_> = (0..40).map(|_| pause()).collect();
        assert!(pauses[0] > first, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= LAST * 2), "{pauses:?}");
        assert!(pauses[39] >= LAST, "{pauses:?}");
        assert!(backoffs.after("b", Retry::Backoff).unwrap() < FIRST * 2, "of its own");
        backoffs.forget("a");
        assert!(pause() < FIRST * 2);
        assert_eq!(backoffs.after("a", Retry::OnChange), None);
        let asked = Duration::from_secs(77);
        assert_eq!(backoffs.after("a", Retry::After(asked)), Some(asked));
    }
}
