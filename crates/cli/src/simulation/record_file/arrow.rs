//! Writes tables as Arrow IPC files, which pandas, Polars, `DuckDB` and others map into memory.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};

use super::{Column, Table, Values};

/// Rows in memory at a time: with fourteen columns of numbers about 7 MB.
pub(super) const BATCH_ROWS: usize = 1 << 16;

/// Writes a table in batches of `batch_rows` rows.
///
/// The types are `int64` with nulls for integers, `double` without nulls for fractions, `double`
/// with nulls for ratios, and `string` without nulls for names. The metadata of a field contains
/// its `unit`.
pub(super) fn write(table: &Table, file: &mut dyn Write, batch_rows: usize) -> io::Result<()> {
    write_batches(table, file, batch_rows).map_err(|error| match error {
        // I/O errors have their own remedy.
        ArrowError::IoError(_, error) => error,
        error => io::Error::other(error),
    })
}

fn write_batches(table: &Table, file: &mut dyn Write, batch_rows: usize) -> Result<(), ArrowError> {
    let fields: Vec<Field> = table.columns.iter().map(Column::field).collect();
    let schema = Arc::new(Schema::new(fields));
    let mut writer = FileWriter::try_new(file, &schema)?;
    for start in (0..table.rows).step_by(batch_rows) {
        let rows = start..table.rows.min(start + batch_rows);
        let arrays = table.columns.iter().map(|column| column.values.array(rows.clone()));
        let arrays = arrays.collect::<Result<Vec<ArrayRef>, ArrowError>>()?;
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), arrays)?)?;
    }
    writer.finish()
}

impl Column<'_> {
    fn field(&self) -> Field {
        let (kind, is_nullable) = match self.values {
            Values::Number(_) => (DataType::Int64, true),
            Values::Fraction(_) => (DataType::Float64, false),
            Values::Ratio(_) => (DataType::Float64, true),
            Values::Text(_) => (DataType::Utf8, false),
        };
        let field = Field::new(self.name, kind, is_nullable);
        if self.unit.is_empty() {
            return field;
        }
        field.with_metadata(HashMap::from([("unit".to_owned(), self.unit.to_owned())]))
    }
}

impl Values<'_> {
    fn array(&self, rows: Range<usize>) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Number(value) => {
                let numbers = rows.map(|row| value(row).map(signed).transpose());
                Arc::new(numbers.collect::<Result<Int64Array, ArrowError>>()?)
            }
            Self::Fraction(value) => Arc::new(Float64Array::from_iter_values(rows.map(value))),
            Self::Ratio(value) => Arc::new(rows.map(value).collect::<Float64Array>()),
            Self::Text(value) => Arc::new(StringArray::from_iter_values(rows.map(value))),
        })
    }
}

fn signed(value: u64) -> Result<i64, ArrowError> {
    i64::try_from(value)
        .map_err(|_| ArrowError::CastError(format!("{value} is more than {}", i64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::ops::ControlFlow;

    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int64Type};
    use arrow_ipc::reader::FileReader;
    use interconnect::configuration::{Configuration, Watch};
    use interconnect::records::RecordLimits;
    use interconnect::simulation::InTurns;

    use super::super::tests::table;
    use super::super::{links, messages, queues};
    use super::*;

    fn written(table: &Table, batch_rows: usize) -> (Schema, Vec<RecordBatch>) {
        let mut file = Vec::new();
        write(table, &mut file, batch_rows).unwrap();
        let reader = FileReader::try_new(Cursor::new(file), None).unwrap();
        let schema = reader.schema().as_ref().clone();
        (schema, reader.map(Result::unwrap).collect())
    }

    /// Returns the table as CSV.
    fn as_csv(batches: &[RecordBatch]) -> String {
        let mut text = String::new();
        for (batch, row) in
            batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| (batch, row)))
        {
            let cells: Vec<String> =
                batch.columns().iter().map(|column| cell(column, row)).collect();
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }

    fn cell(column: &ArrayRef, row: usize) -> String {
        if column.is_null(row) {
            return String::new();
        }
        match column.data_type() {
            DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
            DataType::Float64 => format!("{:?}", column.as_primitive::<Float64Type>().value(row)),
            _ => column.as_string::<i32>().value(row).to_owned(),
        }
    }

    #[test]
    fn the_file_contains_types_and_units() {
        let (schema, batches) = written(&table(), 10);
        let types: Vec<_> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
        assert_eq!(types, [DataType::Utf8, DataType::Int64, DataType::Float64, DataType::Float64]);
        assert_eq!(schema.field(1).metadata().get("unit").map(String::as_str), Some("ps"));
        assert!(schema.field(2).metadata().is_empty());
        assert_eq!(as_csv(&batches), "h0->s0,3,0.25,\ns0->h0#1,,1.0,1.5\n");
    }

    #[test]
    fn a_table_without_rows_has_its_columns() {
        let (schema, batches) = written(&Table { rows: 0, ..table() }, 10);
        assert_eq!((schema.fields().len(), batches.len()), (4, 0));
    }

    /// An integer outside the range of the type causes an error, instead of being truncated.
    #[test]
    fn a_number_beyond_the_type_is_refused() {
        let columns = vec![Column::number("a", "", |_| Some(1 << 63))];
        let error = write(&Table { rows: 1, columns }, &mut Vec::new(), 1).unwrap_err();
        assert!(error.to_string().contains("9223372036854775808"), "{error}");
    }

    #[test]
    fn batched_records_equal_those_in_csv() {
        let text = "[topology]\nhosts = 6\n[workload]\nkind = \"mesh\"\nbytes = 5000\n";
        let configuration = Configuration::parse("a.toml", text).unwrap();
        let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
        let records = configuration.run_watched(&InTurns, watch).unwrap().records.unwrap();
        let slowdowns =
            configuration.slowdowns(&records, &mut |_| ControlFlow::Continue(())).unwrap();
        let topology = &configuration.topology;
        let tables = [
            messages(&records, Some(&slowdowns)),
            links(&records, topology, configuration.fabric.rates()),
            queues(&records, topology),
        ];
        for table in tables {
            let (_, batches) = written(&table, 7);
            assert_eq!(batches.len(), table.rows.div_ceil(7));
            assert!(batches.iter().all(|batch| batch.num_rows() <= 7));
            let mut csv = Vec::new();
            table.write_csv(&mut csv).unwrap();
            let csv = String::from_utf8(csv).unwrap();
            let (_, rows) = csv.split_once('\n').unwrap();
            assert_eq!(as_csv(&batches), rows);
        }
    }
}
