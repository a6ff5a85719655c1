//! Finds constants in source text, and changes the value of one.

/// A constant of a source file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Constant<'a> {
    pub(crate) name: &'a str,
    /// The type as the source code writes it.
    pub(crate) kind: &'a str,
    /// The value as the source code writes it.
    pub(crate) value: &'a str,
}

impl Constant<'_> {
    /// Returns whether the type is a number, or a tuple or array of numbers.
    pub(crate) fn is_number(&self) -> bool {
        let mut words = words(self.kind);
        words.all(|word| NUMBERS.contains(&word) || is_digits(word))
    }

    /// Returns whether the type is a duration.
    pub(crate) fn is_duration(&self) -> bool {
        self.kind == "Duration"
    }
}

/// Returns the constants outside tests that are numbers or durations and have a literal as value.
/// Constants that are computed from other constants or from a type (`u32::MAX`) are not freely
/// chosen, so the result does not contain them.
pub(crate) fn chosen(text: &str) -> Vec<Constant<'_>> {
    let mut found = Vec::new();
    for definition in without_tests(text).split("const ").skip(1) {
        let Some((name, rest)) = definition.split_once(": ") else { continue };
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(is_name) {
            continue;
        }
        let Some((kind, value)) = rest.split_once(" =") else { continue };
        let value = value.split_once(';').map_or(value, |(value, _)| value).trim();
        let constant = Constant { name, kind, value };
        let is_chosen = constant.is_number() && is_written_in_numbers(value)
            || constant.is_duration() && value.starts_with("Duration::from_");
        if is_chosen {
            found.push(constant);
        }
    }
    found
}

/// Returns the text with another value of a constant; `None` if the text does not define it.
pub(super) fn with_value(text: &str, name: &str, value: &str) -> Option<String> {
    let start = text.find(&format!("const {name}: "))?;
    let (before, definition) = text.split_at(start);
    // The type of an array contains a semicolon too, so the value ends at the first semicolon after
    // the equals sign.
    let value_start = definition.find(" =")? + 2;
    let (head, rest) = definition.split_at(value_start);
    let value_end = rest.find(';')?;
    Some(format!("{before}{head} {value}{}", &rest[value_end..]))
}

fn without_tests(text: &str) -> &str {
    let starts = TEST_MODULES.iter().filter_map(|module| text.find(module));
    starts.min().map_or(text, |start| &text[..start])
}

fn is_written_in_numbers(value: &str) -> bool {
    let mut words = value.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
    words.all(|word| {
        word.is_empty()
            || word.starts_with(|c: char| c.is_ascii_digit())
            || word == "as"
            || NUMBERS.contains(&word)
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

fn is_digits(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_digit())
}

const TEST_MODULES: [&str; 2] = ["\nmod tests {", "\nmod model {"];

const NUMBERS: [&str; 13] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "isize", "f32", "f64"];

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&str> {
        chosen(text).iter().map(|constant| constant.name).collect()
    }

    #[test]
    fn hand_chosen_values_are_found() {
        let text = "const A_NS: u64 = 1_000;\npub(crate) const B: (u64, u64) = (1, 2 * 3);\n    \
                    const C: f64 =\n        0.5;\nconst D: u32 = 1 << 10;\n\
                    const E: Duration = Duration::from_millis(5);\nconst F: [u16; 2] = [1, 2];\n";
        assert_eq!(names(text), ["A_NS", "B", "C", "D", "E", "F"]);
    }

    #[test]
    fn derived_values_are_not_found() {
        let text = "const A: u64 = 2 * B;\nconst C: u64 = u32::MAX as u64;\nconst D: &str = \"1\";\n\
                    const fn e(F: u64) -> u64 {}\nconst _: () = assert!(1 < 2);\n\
                    const G: Path = Path { rate: 1 };\n\
                    #[cfg(test)]\nmod tests {\n    const H: u64 = 1;\n}\n";
        assert_eq!(names(text), Vec::<&str>::new());
    }

    #[test]
    fn only_the_value_of_the_constant_changes() {
        let text = "/// A.\nconst A: u64 = 1;\nconst AB: [u16; 2] =\n    [1, 2];\nlet x = A;\n";
        assert_eq!(with_value(text, "A", "0").unwrap(), text.replace("= 1;", "= 0;"));
        let array = with_value(text, "AB", "[0; 2]").unwrap();
        assert_eq!(array, text.replace("=\n    [1, 2]", "= [0; 2]"));
        assert_eq!(with_value(text, "B", "0"), None);
    }
}
