//! Suggests a known word for a misspelt one.

/// Returns the most similar of `words`, if it is similar enough.
pub(crate) fn nearest<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    let nearest = words.iter().copied().min_by_key(|known| distance(word, known))?;
    (distance(word, nearest) <= word.len().div_ceil(3)).then_some(nearest)
}

/// Returns the Levenshtein distance of two words: how many characters must be inserted, removed or
/// replaced to turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (index, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (at, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
