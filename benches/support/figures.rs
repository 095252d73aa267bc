//! Numbers out of numbers.

use std::time::Duration;

/// The middle one.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile(&mut values.into_iter().collect::<Vec<_>>(), 0.5)
}

/// The value that this share of all is below.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index")]
    let at = (share * (values.len() - 1) as f64).round() as usize;
    values[at]
}

/// In milliseconds.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// A count, for division.
#[allow(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
pub(crate) fn float(count: impl TryInto<i64>) -> f64 {
    count.try_into().unwrap_or(i64::MAX) as f64
}
