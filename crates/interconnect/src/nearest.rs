//! Suggests a known word for a misspelt one.

use strsim::osa_distance;

/// Returns the most similar of `words`, if at most a third of the characters of `word` differ.
pub(crate) fn nearest<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    let nearest = words.iter().copied().min_by_key(|known| osa_distance(word, known))?;
    (osa_distance(word, nearest) <= word.len().div_ceil(3)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_with_few_typos_is_recognized_and_another_is_not() {
        let words = ["torus", "tree", "mesh"];
        assert_eq!(nearest("tours", &words), Some("torus"));
        assert_eq!(nearest("mash", &words), Some("mesh"));
        assert_eq!(nearest("hypercube", &words), None);
    }
}
