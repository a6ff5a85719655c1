//! Sweeps: many configurations from one file, with all combinations of some settings.

use toml::{Table, Value};

use super::lines::Written;
use super::reader::{shown, written};
use super::{Configuration, ConfigurationError, Setting, parse_table};

/// A point of a sweep.
#[derive(Clone, Debug)]
pub struct Point {
    /// Settings that distinguish the point, such as `fabric.mtu_bytes=9000`.
    pub name: String,
    /// The settings of `name` in the same order, as pairs of key and value. The key includes its
    /// section.
    pub settings: Vec<(String, Setting)>,
    /// The complete configuration.
    pub configuration: Configuration,
}

/// Reads a configuration and its sections `[sweep.X]`. A key of such a section has a list of values
/// for the key of the same name in section X. Returns one point for each combination of values; the
/// last key varies fastest. Without such sections, returns one point.
///
/// `read` reads the files that the configuration names, as in [`Configuration::parse_with_files`].
///
/// # Errors
/// Returns [`ConfigurationError`]; each variant names one cause.
pub fn parse_sweep(
    file: &str,
    text: &str,
    read: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Vec<Point>, ConfigurationError> {
    let mut root = parse_table(file, text)?;
    let written = Written { file: file.to_owned(), text: text.to_owned() };
    let mut settings = Vec::new();
    if let Some(sweep) = root.remove("sweep") {
        for (section, keys) in table(file, "sweep", sweep)? {
            for (key, values) in table(file, &format!("sweep.{section}"), keys)? {
                let Value::Array(values) = values else {
                    return Err(wrong(file, &format!("sweep.{section}"), &key, &values));
                };
                settings.push((section.clone(), key, values));
            }
        }
    }
    let lengths = settings.iter().map(|(_, _, values)| values.len());
    let points = lengths.fold(1, usize::saturating_mul);
    if points == 0 || points > POINTS_MAX {
        return Err(ConfigurationError::Value {
            file: file.to_owned(),
            section: "sweep".to_owned(),
            key: "the number of combinations".to_owned(),
            value: points.to_string(),
            expected: format!("from 1 to {POINTS_MAX}"),
        });
    }
    (0..points).map(|number| point(&written, &root, &settings, number, read)).collect()
}

fn point(
    source: &Written,
    root: &Table,
    settings: &[(String, String, Vec<Value>)],
    number: usize,
    read: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Point, ConfigurationError> {
    let mut root = root.clone();
    let mut chosen = Vec::new();
    let mut rest = number;
    for (section, key, values) in settings.iter().rev() {
        let Some(value) = values.get(rest % values.len()) else { continue };
        rest /= values.len();
        chosen.push((format!("{section}.{key}"), value.clone()));
        let slot = root.entry(section.clone()).or_insert_with(|| Value::Table(Table::new()));
        match slot {
            Value::Table(table) => {
                table.insert(key.clone(), value.clone());
            }
            Value::Array(_) => {
                return Err(source.locate(of_a_list(&source.file, section, key, value)));
            }
            _ => {}
        }
    }
    chosen.reverse();
    let configuration = Configuration::from_written(source, root, read)?;
    // The names contain complete lists, because two points can be equal except for one list.
    let names: Vec<String> =
        chosen.iter().map(|(key, value)| format!("{key}={}", written(value))).collect();
    Ok(Point { name: names.join(" "), settings: chosen, configuration })
}

fn table(file: &str, name: &str, value: Value) -> Result<Table, ConfigurationError> {
    match value {
        Value::Table(table) => Ok(table),
        other => Err(wrong(file, "", name, &other)),
    }
}

fn wrong(file: &str, section: &str, key: &str, value: &Value) -> ConfigurationError {
    ConfigurationError::Value {
        file: file.to_owned(),
        section: section.to_owned(),
        key: key.to_owned(),
        value: shown(value),
        expected: "a section [sweep.X] whose keys have lists of values".to_owned(),
    }
}

/// Returns an error about a swept key whose section exists several times.
fn of_a_list(file: &str, section: &str, key: &str, value: &Value) -> ConfigurationError {
    ConfigurationError::Value {
        file: file.to_owned(),
        section: format!("sweep.{section}"),
        key: key.to_owned(),
        value: shown(value),
        expected: format!("of a single section: [{section}], not [[{section}]]"),
    }
}

/// Maximum number of points. If each run takes one second, 100 000 points take about a day.
const POINTS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::super::no_files;
    use super::*;

    #[test]
    fn all_combinations_are_points() {
        let text = "[workload]\nbytes = 1\n[sweep.workload]\nbytes = [64, 1500]\n[sweep.run]\nseed = \
                    [1, 2, 3]\n";
        let points = parse_sweep("a.toml", text, &no_files).expect("it is valid");
        let names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names.len(), 6);
        assert!(names.contains(&"run.seed=2 workload.bytes=1500"), "{names:?}");
        let mut hashes: Vec<u64> = points.iter().map(|point| point.configuration.hash()).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 6);
    }

    #[test]
    fn points_that_differ_in_lists_have_different_names() {
        let text = "[topology]\nkind = \"torus\"\n[sweep.topology]\nsizes = [[4, 4], [2, 8]]\n\
                    [sweep.fabric]\nchoice = [\"spray\"]\n";
        let points = parse_sweep("a.toml", text, &no_files).expect("it is valid");
        let names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "fabric.choice=\"spray\" topology.sizes=[4, 4]",
                "fabric.choice=\"spray\" topology.sizes=[2, 8]"
            ]
        );
        let (key, value) = &points[1].settings[1];
        assert_eq!(key, "topology.sizes");
        assert_eq!(value.as_array().map(Vec::len), Some(2));
    }

    /// Sixteen keys with sixteen values each make 2^64 points.
    #[test]
    fn a_sweep_with_too_many_points_to_count_is_refused() {
        let values = "1, ".repeat(16);
        let keys: Vec<String> = (0..16).map(|key| format!("k{key} = [{values}]")).collect();
        let text = format!("[sweep.workload]\n{}\n", keys.join("\n"));
        let error = parse_sweep("a.toml", &text, &no_files).expect_err("too many");
        assert!(error.to_string().contains("from 1 to 100000"), "{error}");
    }

    #[test]
    fn an_invalid_sweep_is_refused() {
        let refused =
            |text: &str| parse_sweep("a.toml", text, &no_files).expect_err("wrong").to_string();
        assert!(refused("sweep = 3\n").contains("sweep"));
        assert!(refused("[sweep.run]\nseed = 3\n").contains("lists of values"));
        assert!(refused("[sweep.run]\nseed = []\n").contains("combinations"));
        assert!(refused("[sweep.run]\nsead = [1]\n").contains("`seed`"));
    }
}
