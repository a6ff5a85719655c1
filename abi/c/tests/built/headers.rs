//! Checks of a header that cbindgen makes: it matches its library, and compilers accept it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::built;

/// A header and its library.
pub(crate) struct Header {
    /// The content of the header.
    pub(crate) text: &'static str,
    /// The file name of the header.
    pub(crate) name: &'static str,
    /// The include guard, which the header defines without a value.
    pub(crate) guard: &'static str,
    /// The package of the library.
    pub(crate) package: &'static str,
    /// The folder of the package.
    pub(crate) folder: &'static str,
    /// A folder for files of the test.
    pub(crate) temporary: &'static str,
    /// A number of functions that the library exceeds.
    pub(crate) functions_least: usize,
}

impl Header {
    /// Compares the functions that the sources export with those of the header.
    pub(crate) fn declares_exactly_the_functions_of_the_library(&self) {
        let mut exported = BTreeSet::new();
        for file in fs::read_dir(Path::new(self.folder).join("src")).expect("the sources").flatten()
        {
            let text = fs::read_to_string(file.path()).expect("a source");
            let mut lines = text.lines();
            while lines.by_ref().any(|line| line.contains("no_mangle")) {
                let name = lines.next().and_then(|line| line.split("extern \"C\" fn ").nth(1));
                let name = name.and_then(|rest| rest.split('(').next()).expect("a function of C");
                exported.insert(name.to_owned());
            }
        }
        let declared = |line: &&str| {
            let is_code = !line.starts_with([' ', '/', '#', '*']) && !line.starts_with("typedef");
            is_code && line.contains("ethernot_")
        };
        let named = self.text.lines().filter(declared).filter_map(|line| line.split('(').next());
        let in_header = named.filter_map(|line| line.split([' ', '*']).next_back());
        let is_function = |name: &&str| self.text.contains(&format!("{name}("));
        let in_header: BTreeSet<_> = in_header.filter(is_function).map(str::to_owned).collect();
        assert!(exported.len() > self.functions_least, "{exported:?}");
        assert_eq!(exported, in_header, "make it again: see cbindgen.toml");
    }

    /// Runs the program in `CBINDGEN`, or the installed `cbindgen`. The version must be at least
    /// 0.29, because older versions do not parse this edition of Rust.
    pub(crate) fn equals_the_output_of_cbindgen(&self) {
        let program = std::env::var("CBINDGEN").unwrap_or_else(|_| "cbindgen".into());
        let version = Command::new(&program).arg("--version").output();
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let minor =
            version.ok().and_then(|text| text.trim().split('.').nth(1)?.parse::<u32>().ok());
        if minor.is_none_or(|minor| minor < 29) {
            println!("skipped: no cbindgen 0.29 (cargo install cbindgen, or name it in CBINDGEN)");
            return;
        }
        let output = Command::new(program)
            .current_dir(self.folder)
            .args(["--quiet", "--config", "cbindgen.toml", "--crate", self.package])
            .output()
            .expect("cbindgen runs");
        let made = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(made, self.text, "make it again: see cbindgen.toml");
    }

    /// Returns the names that appear in comments of the header and that the header must declare.
    pub(crate) fn named_in_comments(&self) -> BTreeSet<&'static str> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let comments = self.text.split("/*").skip(1).filter_map(|rest| rest.split("*/").next());
        let words = comments.flat_map(|comment| comment.split(move |letter| !is_part(letter)));
        let is_ours = |word: &&str| word.to_ascii_lowercase().starts_with("ethernot_");
        words.filter(is_ours).filter(|word| *word != self.guard).collect()
    }

    /// Compiles a program that uses all names in comments, except `others`, which are not names of
    /// the header.
    pub(crate) fn has_every_name_of_its_comments(&self, others: &[&str]) {
        let names = self.named_in_comments();
        let mut program = format!("#include <{}>\nint main(void) {{\n", self.name);
        for name in names.iter().filter(|name| !others.contains(name)) {
            let is_type = name.starts_with('e') && !self.text.contains(&format!("{name}("));
            let used = if is_type { format!("({name} *)0") } else { (*name).to_owned() };
            writeln!(program, "    (void)({used});").expect("a string takes everything");
        }
        program += "    return 0;\n}\n";
        let include = format!("-I{}/include", self.folder);
        for (compiler, source) in [("cc", "names.c"), ("c++", "names.cc")] {
            let source = Path::new(self.temporary).join(source);
            fs::write(&source, &program).expect("a folder for tests");
            let source = source.display().to_string();
            let arguments = ["-Wall", "-Werror", "-fsyntax-only", &include, &source];
            built::compiles(compiler, &arguments);
        }
    }

    /// Compiles the header as C11 and C++17, without warnings.
    pub(crate) fn compiles(&self) {
        let header = format!("{}/include/{}", self.folder, self.name);
        let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
        for (compiler, language, standard) in
            [("cc", "c", "-std=c11"), ("c++", "c++", "-std=c++17")]
        {
            let arguments = [&strict[..], &[standard, "-x", language, &header]].concat();
            built::compiles(compiler, &arguments);
        }
    }
}
