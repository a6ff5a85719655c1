//! Errors for settings with unusable values.

use core::fmt::Display;
use core::ops::RangeInclusive;

use thiserror::Error;

/// A setting has an unusable value. All settings of links, runtimes and endpoints use this error
/// type.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("the setting `{setting}` is {value}; {wanted} would do")]
pub struct SettingError {
    /// Name of the field.
    pub setting: &'static str,
    /// Value of the field.
    pub value: String,
    /// Acceptable values.
    pub wanted: String,
}

impl SettingError {
    /// Checks that a value is within `wanted`.
    ///
    /// # Errors
    /// Returns [`SettingError`] with the setting, the value and the range, if the value is outside
    /// the range.
    pub fn unless_within<T: Display + PartialOrd>(
        setting: &'static str,
        value: &T,
        wanted: &RangeInclusive<T>,
    ) -> Result<(), Self> {
        if wanted.contains(value) {
            return Ok(());
        }
        let wanted = format!("{} to {}", wanted.start(), wanted.end());
        Err(Self { setting, value: value.to_string(), wanted })
    }
}

/// Adds a setter method for each field of a configuration. If the call does not list all fields,
/// the code does not compile.
#[macro_export]
macro_rules! setters {
    ($name:ident { $($field:ident: $of:ty),* $(,)? }) => {
        /// Setters: each sets one field and leaves the others unchanged.
        impl $name {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@", stringify!($name), "::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, value: $of) -> Self {
                    self.$field = value;
                    self
                }
            )*

            const _ALL: fn(&Self) = |Self { $($field: _),* }| ();
        }
    };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro is for configurations that are public")]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_wrong_value_and_the_valid_range() {
        let error = SettingError::unless_within("links_max", &17, &(1..=16)).unwrap_err();
        assert_eq!(error.to_string(), "the setting `links_max` is 17; 1 to 16 would do");
        for value in [1, 16] {
            assert_eq!(SettingError::unless_within("links_max", &value, &(1..=16)), Ok(()));
        }
        // NaN is not within any range.
        assert!(SettingError::unless_within("loss", &f64::NAN, &(0.0..=1.0)).is_err());
    }

    #[derive(Debug, Default, PartialEq)]
    struct Tea {
        sugar: u8,
        milk: bool,
    }

    crate::setters!(Tea { sugar: u8, milk: bool });

    #[test]
    fn a_setter_sets_its_field_and_no_other() {
        assert_eq!(Tea::default().sugar(2), Tea { sugar: 2, milk: false });
        assert_eq!(Tea::default().sugar(2).milk(true), Tea { sugar: 2, milk: true });
    }
}
