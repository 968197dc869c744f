//! USDT probes: named places in the code where bpftrace, perf, SystemTap or GDB can listen.
//!
//! While nobody listens, a probe is one `nop`, with its arguments in registers. A listener replaces
//! the `nop` by a breakpoint, so only then does a probe cost time. The ELF notes of the program
//! (`readelf -n`) name each probe and tell where its arguments are.
//!
//! All probes have the provider `forebay`. `docs/insight.md` lists them with their arguments, and
//! `packaging/bpftrace` has scripts. Locking: none.

#[cfg(not(any(miri, forebay_model)))]
#[doc(hidden)]
pub use ::probe as usdt;

/// Marks a place where a tool can listen. Arguments are integers or thin pointers.
///
/// ```
/// let (offset, bytes) = (4096_u64, 512_u64);
/// forebay_base::probe!(example, offset, bytes);
/// ```
#[cfg(not(any(miri, forebay_model)))]
#[macro_export]
macro_rules! probe {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        $crate::probe::usdt::probe!(forebay, $name $(, $argument)*)
    };
}

/// Nothing: Miri has no inline assembly, and model checks have no listeners.
#[cfg(any(miri, forebay_model))]
#[macro_export]
macro_rules! probe {
    ($name:ident $(, $argument:expr)* $(,)?) => {{
        $(let _ = $argument;)*
    }};
}
