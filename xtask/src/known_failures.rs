//! Known failures: tests that fail for the reason in their marker. If such a test passes, its
//! marker must be removed.

use std::process::Stdio;

use crate::count::Count;
use crate::error::XtaskError;
use crate::test_output::TestReader;
use crate::tidy::{files_below, ignored, read};
use crate::workspace::{Package, Workspace, cargo, package_name};

/// Runs each known failure of these packages. Counts a failing test as skipped, and a passing test
/// as failed.
pub(crate) fn test<'a>(
    workspace: &Workspace,
    packages: impl IntoIterator<Item = &'a Package>,
) -> Result<Count, XtaskError> {
    let mut count = Count::NONE;
    for package in packages {
        for file in files_below(&package.folder, &workspace.target_dir)? {
            if file.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            for failure in ignored::known_failures(&read(&file)?) {
                let passes = passes(&package_name(&package.name), &failure.test)?;
                let (of_test, verdict) = if passes {
                    (Count::ONE_FAILED, "passes; take its marker away")
                } else {
                    (Count::ONE_SKIPPED, "fails as known")
                };
                println!("{} ({}): {verdict}", failure.test, failure.reason);
                count.add(of_test);
            }
        }
    }
    Ok(count)
}

/// Returns whether an ignored test of a package runs and passes.
fn passes(package: &str, test: &str) -> Result<bool, XtaskError> {
    let arguments = ["test", "--package", package, "--no-fail-fast", test, "--", "--ignored"];
    let output = cargo().args(arguments).stdin(Stdio::null()).output();
    let start_error = |cause| XtaskError::Start { program: format!("cargo {arguments:?}"), cause };
    let output = output.map_err(start_error)?;
    let mut reader = TestReader::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let _shown = reader.handle_line(line);
    }
    let count = reader.count();
    Ok(output.status.success() && count.passed > 0 && count.failed == 0)
}
