//! From sampled misses to misses. Pure functions.

/// Fewer sampled misses than this do not calibrate the curve.
const MIN_CALIBRATION: f64 = 32.0;
/// The calibration changes misses by this factor at most.
const MAX_CALIBRATION: f64 = 2.0;

/// Misses of the sample, with decay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sampled {
    /// Each counts as many as one sampled block stands for.
    pub(crate) misses: f64,
    /// Variance of `misses`, as far as it comes from the choice of the blocks.
    pub(crate) variance: f64,
    /// One of so many blocks is sampled.
    pub(crate) one_in: f64,
}

/// What the cache itself counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Hits and misses.
    pub(crate) accesses: f64,
    pub(crate) misses: f64,
}

/// Misses at each size and their standard errors. `today` is the index of the cache's size.
pub(crate) fn misses(measured: Measured, sampled: &[Sampled], today: usize) -> Vec<(f64, f64)> {
    let simulated = sampled[today].misses;
    let calibrates = measured.misses.min(simulated) >= MIN_CALIBRATION;
    let calibration = if calibrates { measured.misses / simulated } else { 1.0 };
    let calibration = calibration.clamp(1.0 / MAX_CALIBRATION, MAX_CALIBRATION);
    let coarse = sampled[today].one_in - 1.0;
    let of_size = |(n, sampled): (usize, &Sampled)| {
        if n == today {
            return (measured.misses, 0.0);
        }
        // Samples are parts of each other. A finer one has a part of the error of today's.
        let shared = if coarse > 0.0 { ((sampled.one_in - 1.0) / coarse).min(1.0) } else { 1.0 };
        let calibration = calibration.powf(shared);
        let misses = sampled.misses * calibration;
        let error = sampled.variance.sqrt() * calibration;
        (misses.min(measured.accesses), error.min(measured.accesses))
    };
    sampled.iter().enumerate().map(of_size).collect()
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::{Measured, Sampled, misses};

    #[test]
    fn todays_misses_are_the_measured_ones_and_calibrate_the_others() {
        let sampled =
            [800.0, 400.0, 200.0].map(|misses| Sampled { misses, variance: misses, one_in: 2.0 });
        let measured = Measured { accesses: 2000.0, misses: 500.0 };
        let of =
            |measured| misses(measured, &sampled, 1).into_iter().map(|m| m.0).collect::<Vec<_>>();
        assert_eq!(of(measured), [1000.0, 500.0, 250.0]);
        // A whole sample has no error to correct.
        let mut whole = sampled;
        whole[0].one_in = 1.0;
        assert_eq!(misses(measured, &whole, 1)[0].0, 800.0);
        // Too few misses to calibrate, and no more misses than accesses.
        assert_eq!(of(Measured { misses: 9.0, ..measured }), [800.0, 9.0, 200.0]);
        assert_eq!(of(Measured { accesses: 900.0, ..measured })[0], 900.0);
    }
}
