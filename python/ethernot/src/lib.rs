//! The native part of the Python package `ethernot`. It contains the objects of the Rust API.
//! Programs use the classes in the folder `ethernot`, which add support for event loops.

mod attempt;
mod connection;
mod endpoint;
mod errors;
mod interrupts;
mod lent;
mod memory;
mod operation;
mod shared_memory;
mod waiting;

use pyo3::prelude::*;

/// Defines the module `_native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::add(module)?;
    module.add_class::<endpoint::Endpoint>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<memory::RemoteMemory>()?;
    module.add_class::<connection::Listener>()?;
    module.add_class::<connection::Request>()?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<attempt::Attempt>()?;
    module.add_function(wrap_pyfunction!(attempt::is_address, module)?)?;
    module.add_class::<operation::Operation>()?;
    module.add_class::<operation::Receive>()?;
    module.add_class::<operation::Completion>()?;
    module.add_class::<shared_memory::DsmRank>()?;
    module.add_class::<shared_memory::DsmArray>()?;
    Ok(())
}
