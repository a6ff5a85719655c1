//! Finds those fields of a struct that code in other files can write.

use crate::tidy::without_tests::code_without_tests;

/// Returns the number of fields of the struct `name` that code outside the file `text` can write.
/// Returns `None` if the file defines no such struct with named fields.
///
/// Modules below the module that defines the struct can access its private fields. If such a module
/// has its own file, every field counts as writable.
pub(super) fn open(text: &str, name: &str) -> Option<usize> {
    let code = code_without_tests(text);
    let fields = fields(body(&code, name)?);
    let has_files_below = code.lines().any(is_module_with_file);
    Some(fields.into_iter().filter(|field| has_files_below || is_open(field)).count())
}

/// Returns the text between the braces of the struct.
fn body<'a>(code: &'a str, name: &str) -> Option<&'a str> {
    code.match_indices("struct ").find_map(|(at, keyword)| {
        let after = code.get(at + keyword.len()..)?.strip_prefix(name)?;
        if after.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            return None;
        }
        let (head, body) = after.split_once('{')?;
        let mut depth = 1_usize;
        let end = body.char_indices().find(|(_, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let (end, _) = end?;
        // For a unit or tuple struct, the braces belong to a later item.
        (!head.contains(';')).then(|| body.get(..end))?
    })
}

/// Returns the fields in the text between the braces of a struct, without attributes.
fn fields(body: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut depth = 0_i32;
    let mut previous = ' ';
    for c in body.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if previous != '-' => depth -= 1,
            _ => {}
        }
        previous = c;
        match found.last_mut() {
            Some(field) if c != ',' || depth > 0 => field.push(c),
            _ => found.push(String::new()),
        }
    }
    let fields = found.iter().map(|field| without_attributes(field));
    fields.filter(|field| field.contains(':')).map(str::to_owned).collect()
}

fn without_attributes(field: &str) -> &str {
    let mut field = field.trim_start();
    while let Some(attribute) = field.strip_prefix("#[") {
        let mut depth = 1_i32;
        let end = attribute.find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            depth == 0
        });
        field = end.and_then(|end| attribute.get(end + 1..)).unwrap_or_default().trim_start();
    }
    field
}

/// Returns whether the field is visible outside its module.
fn is_open(field: &str) -> bool {
    field.strip_prefix("pub").is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_whitespace() || c == '(')
            && !rest.trim_start().starts_with("(self)")
    })
}

/// Returns whether the line is `mod name;`, with any visibility.
fn is_module_with_file(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    words.next() == Some("mod") && words.next().is_some_and(|name| name.ends_with(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
/// struct Path { pub wrong: u8 }
pub(crate) struct PathLike {
    pub other: u8,
}

#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) index: LinkIndex,
    /// Named, `pub(crate) not: u8`.
    life: Life,
    pub(super) by: HashMap<(A, B), C>, pub answer: Box<dyn Fn(u8, u8) -> u8>,
    #[expect(dead_code, reason = \"a, pub b: u8\")]
    pub(self) own: [u8; LINKS_MAX],
    public: u8,
    pub(in crate::engine) last: u8
}

#[cfg(test)]
mod tests {
    struct Path {
        pub a: u8,
    }
}
";

    #[test]
    fn fields_with_a_visibility_count_and_private_ones_do_not() {
        assert_eq!(open(SOURCE, "Path"), Some(4));
        assert_eq!(open(SOURCE, "PathLike"), Some(1));
    }

    #[test]
    fn a_missing_struct_has_no_count() {
        assert_eq!(open(SOURCE, "Engine"), None);
        assert_eq!(open("struct Path;\nstruct B { pub a: u8 }\n", "Path"), None);
        assert_eq!(open("struct Path(u8);\nstruct B { pub a: u8 }\n", "Path"), None);
    }

    #[test]
    fn private_fields_count_if_modules_below_have_files() {
        let source = "struct A {\n    a: u8,\n    pub b: u8,\n}\n";
        assert_eq!(open(&format!("mod below;\n{source}"), "A"), Some(2));
        assert_eq!(open(&format!("pub(crate) mod below;\n{source}"), "A"), Some(2));
        assert_eq!(open(&format!("mod inside {{}}\n{source}"), "A"), Some(1));
        assert_eq!(open(&format!("{source}#[cfg(test)]\nmod tests;\n"), "A"), Some(1));
    }
}
