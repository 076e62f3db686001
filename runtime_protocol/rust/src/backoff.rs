//! How long to wait before a call is repeated.

use std::time::Duration;

use crate::CallError;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// For what only an operator can mend: a token that is refused, a version that is not spoken.
pub(crate) const OPERATOR: Duration = Duration::from_secs(60);

/// Exponential with jitter, from 0.2 s to 30 s, and never earlier than the server asked for (PROTOCOL.md, "Repeating calls").
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(crate) fn after(&mut self, error: &CallError) -> Duration {
        let step = FIRST.saturating_mul(1 << self.tries.min(8)).min(LONGEST);
        self.tries += 1;
        // The jitter spreads a herd of runtimes that lost the server at the same moment.
        let wait = step.mul_f64(0.5 + fastrand::f64() / 2.0);
        if error.needs_operator() {
            return OPERATOR.mul_f64(0.5 + fastrand::f64() / 2.0).max(wait);
        }
        wait.max(error.retry_after().unwrap_or_default())
    }

    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_to_its_bound_and_starts_again() {
        let lost = CallError::NoAnswer("test".to_owned());
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..20).map(|_| backoff.after(&lost)).collect();
        assert!(waits[0] <= FIRST && waits[0] >= FIRST / 2);
        assert!(waits[19] <= LONGEST && waits[19] >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.after(&lost) <= FIRST);
    }
}
