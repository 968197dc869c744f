//! Power cuts for tests of the program: SIGKILL loses what no flush has covered.
//!
//! If [`VARIABLE`] is set to a number, a device that is opened for writing keeps writes in this
//! process until a flush. The end of the process is then a power cut. The number is a seed. If it
//! is odd, about half of the writes reach the medium at once, as in a device that writes its cache
//! back early. If it is even, none does.
//!
//! Only with the feature `testing`.

use forebay_base::sync::Arc;
use forebay_io::Device;
use forebay_io::fault::{Fault, FaultDevice, Rule};

use crate::error::{Error, ErrorKind, Result};

/// The environment variable with the seed.
const VARIABLE: &str = "FOREBAY_TEST_POWER_CUT";

/// Puts a volatile cache before `device` if the environment asks for it.
pub(crate) fn before(device: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    let Ok(text) = std::env::var(VARIABLE) else { return Ok(device) };
    let seed: u64 = text.parse().map_err(|_| {
        let text = format!("{VARIABLE}={text} is not a number; set it to a seed");
        Error::new(ErrorKind::Invalid, text)
    })?;
    let held = if seed.is_multiple_of(2) { 1.0 } else { 0.5 };
    let name = &device.info().name;
    tracing::warn!(device = %name, held, "writes without a flush are lost when this process ends");
    let device = FaultDevice::new(device, seed);
    device.add(Rule::new(Fault::Volatile).with_probability(held));
    Ok(Arc::new(device))
}
