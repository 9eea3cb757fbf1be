//! Medians and quartiles.

use serde::Serialize;

/// Middle half of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quartiles {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

/// Quartiles by linear interpolation; `None` of an empty sample.
pub fn quartiles(sample: &[f64]) -> Option<Quartiles> {
    Some(Quartiles {
        low: quantile(sample, 0.25)?,
        median: quantile(sample, 0.5)?,
        high: quantile(sample, 0.75)?,
    })
}

/// A quantile by linear interpolation; `None` of an empty sample.
pub fn quantile(sample: &[f64], q: f64) -> Option<f64> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = q * sorted.len().checked_sub(1)? as f64;
    let below = sorted.get(position.floor() as usize)?;
    let above = sorted.get(position.ceil() as usize)?;
    Some(below + (above - below) * position.fract())
}

/// Quotients of what was measured in the same round: noise that lasts longer than a round cancels out.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(a, b)| a / b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate() {
        let q = quartiles(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((q.low, q.median, q.high), (1.75, 2.5, 3.25));
        assert_eq!(quartiles(&[]), None);
    }

    #[test]
    fn ratios_are_paired() {
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]), [2.0, 3.0]);
    }
}
