//! Ratios of times that were measured in turn.

/// Prints the median of ratios as a figure, with their spread.
pub(super) fn print(figure: &str, ratios: &mut [f64]) {
    ratios.sort_by(f64::total_cmp);
    let [least, .., most] = *ratios else { return };
    let median = ratios[ratios.len() / 2];
    println!("{figure}: {median:.2}, from {least:.2} to {most:.2}");
    println!("figure: {figure}: {median:.3}");
}

/// Returns the median.
pub(super) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
