//! What a proxy does to the requests that pass it.

use std::str::FromStr;
use std::time::Duration;

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is reset: before the request, within its body, before its response, which is
    /// lost, or within that.
    Reset,
    /// A body ends early, and with it the connection.
    Cut,
    /// The body of a response is shorter than the object, and says so.
    Short,
    /// The server asks for fewer requests.
    Busy,
    /// The server has no space for what puts would write.
    Full,
    /// Nothing passes until the fault ends.
    Stalled,
}

impl Fault {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Reset, Self::Cut, Self::Short, Self::Busy, Self::Full, Self::Stalled];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Cut => "cut",
            Self::Short => "short",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Stalled => "stalled",
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|fault| fault.name() == name);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("`{name}` is none of {}", names()))
    }
}

/// What a proxy does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behaviour {
    /// Passes before a request goes on.
    pub(crate) delay: Duration,
    /// Of all bodies together.
    pub(crate) bytes_per_second: Option<u64>,
    /// What goes wrong, and with how many of a thousand requests.
    pub(crate) fault: Option<(Fault, u16)>,
}

/// What has passed a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    /// Those of them that a fault has hit.
    pub(crate) faults: u64,
    /// Requests at a time, at most.
    pub(crate) in_flight_max: u64,
    /// Bytes of bodies, in both directions.
    pub(crate) body_bytes: u64,
}
