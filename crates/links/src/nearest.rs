//! Suggests a known name for a misspelt one.

use strsim::osa_distance;

/// Returns the name that the user probably meant by `wrong`. This is the most similar name, if it
/// differs from `wrong` in at most a third of the characters of `wrong`.
pub(crate) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = names.map(|name| (osa_distance(wrong, name), name));
    let limit = wrong.chars().count().max(3) / 3;
    distances.filter(|&(distance, _)| distance <= limit).min_by_key(|&(d, _)| d).map(|(_, n)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        let names = ["eth0", "enp3s0", "wlan0"];
        let near = |wrong| nearest(wrong, names.into_iter());
        assert_eq!(near("eht0"), Some("eth0"));
        assert_eq!(near("eth1"), Some("eth0"));
        assert_eq!(near("enp3s1"), Some("enp3s0"));
        assert_eq!(near("wlan"), Some("wlan0"));
        assert_eq!(near("infiniband"), None);
    }
}
