//! `forebay inspect`: looking at what lies on devices, without importing anything and without any lock.
//!
//! What is shown comes from `forebay_pool::inspect`, which knows the formats and prints; this module has the command line, and
//! the same for machines (`json`). It works on a pool in use, on one that nobody has imported, and on one that nobody can import.

mod json;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay_pool::inspect::{BlockOwner, Inspected, Inspector, LabelState, ObjsetName};
use serde_json::Value;

use crate::control::client::{self, Target};
use crate::error::{Failure, Result};
use crate::output;
use crate::pools;

/// What datasets' names stand for the pool's own objects.
const OWN: &str = "-";
/// What stands in place of an object's number for the blocks of dnodes.
const DNODES: &str = "dnodes";

#[derive(Debug, Args)]
#[command(
    subcommand_precedence_over_arg = true,
    after_help = "Examples:\n  \
        forebay inspect tank.img label\n  \
        forebay inspect tank uberblocks              a pool in use, by its name\n  \
        forebay inspect /dev/sdb /dev/sdc txg        the newest transaction group, its datasets and space\n  \
        forebay inspect tank.img object main 1       an object of dataset main\n  \
        forebay inspect tank.img zap main 1          a directory, with histograms of its leaves\n  \
        forebay inspect tank.img block main 7 0      the first block of object 7\n  \
        forebay inspect tank.img block 0:0x40000:512 bytes of device 0\n\n\
        Nothing is written and no lock is taken. What only the memory of a running process has is not seen.\n\
        Exit code: 0 if what was asked for is whole, 1 if something of it is damaged or missing."
)]
pub(crate) struct InspectArgs {
    /// Devices of a pool in any order (some may be missing), or the name of a pool in use
    #[arg(required = true, value_name = "DEVICE|POOL")]
    devices: Vec<String>,
    #[command(subcommand)]
    what: What,
    /// For machines
    #[arg(long, global = true)]
    json: bool,
    /// As of this transaction group, as far as it is still there, instead of the newest
    #[arg(long = "as-of", global = true, value_name = "TXG")]
    as_of: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The labels of each device, at both ends
    #[command(alias = "labels")]
    Label,
    /// The rings of uberblocks, and which root blocks can be read
    #[command(alias = "uberblock")]
    Uberblocks,
    /// A transaction group: its root block, space, intent log and datasets
    Txg {
        /// Its number; else the newest
        txg: Option<u64>,
    },
    /// Datasets, with their settings
    Datasets,
    /// An object: its dnode, attributes, and tree by levels
    Object {
        /// A dataset's name, or `-` for the pool's own objects
        dataset: String,
        /// The object's number
        number: u64,
    },
    /// A directory: counts and histograms of its leaves
    Zap {
        /// A dataset's name, or `-` for the pool's own objects
        dataset: String,
        /// The directory's number
        number: u64,
    },
    /// A block: DATASET OBJECT BLOCK, or DEVICE:OFFSET:BYTES
    Block {
        /// A dataset's name (`-`: the pool's own objects), or a place such as 0:0x40000:4096
        #[arg(value_name = "DATASET|PLACE")]
        place: String,
        /// The object's number, or `dnodes`
        object: Option<String>,
        /// The block's number
        #[arg(requires = "object")]
        block: Option<u64>,
        /// The block of this height that leads to it
        #[arg(long, default_value_t = 0)]
        level: u8,
        /// Write its bytes alone to standard output
        #[arg(long, conflicts_with = "json")]
        raw: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// What cannot be looked at; also if it is damaged, once that has been shown.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let inspector = Inspector::open(&paths(&args.devices)?)?;
    let shown = Shown { args };
    match &args.what {
        What::Label => shown.labels(&inspector),
        What::Uberblocks => shown.uberblocks(&inspector),
        What::Txg { txg } => {
            let group = inspector.txg(txg.or(args.as_of))?;
            shown.seen(&group, json::group(&group.found), !group.found.damage.is_empty())
        }
        What::Datasets => shown.datasets(&inspector),
        What::Object { dataset, number } => {
            let object = inspector.object(set(dataset), *number, args.as_of)?;
            shown.seen(&object, json::object(&object.found), !object.found.damage.is_empty())
        }
        What::Zap { dataset, number } => {
            let zap = inspector.directory(set(dataset), *number, args.as_of)?;
            shown.seen(&zap, json::directory(&zap.found), !zap.found.damage.is_empty())
        }
        What::Block { place, object, block, level, raw } => match (object, block) {
            (None, _) => shown.bytes(&inspector, place, *raw),
            (Some(object), Some(block)) => {
                let of = match &**object {
                    DNODES => BlockOwner::Dnodes,
                    number => BlockOwner::Object(parse(number, "an object's number, or `dnodes`")?),
                };
                shown.block(&inspector, (set(place), of, *block, *level), *raw)
            }
            (Some(_), None) => {
                let text =
                    "block: give dataset, object and block, or a place such as 0:0x40000:4096";
                Err(Failure::usage(text))
            }
        },
    }
}

/// The devices that are meant.
fn paths(given: &[String]) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for one in given {
        match pools::paths_of(one) {
            Some(found) => paths.extend(found),
            None => match client::find(one)? {
                Target::InUse { pool, .. } => paths.extend(pool.devices),
                Target::Paths(found) => paths.extend(found),
            },
        }
    }
    Ok(paths)
}

fn set(name: &str) -> ObjsetName<'_> {
    match name {
        OWN => ObjsetName::Own,
        name => ObjsetName::Dataset(name),
    }
}

/// A number, in hexadecimal digits after `0x`.
fn parse(text: &str, what: &str) -> Result<u64> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| Failure::usage(format!("`{text}` is not {what}")))
}

/// Shows things as the command line wants them.
struct Shown<'a> {
    args: &'a InspectArgs,
}

impl Shown<'_> {
    fn show(&self, text: &impl Display, json: &Value, damaged: bool) -> Result<()> {
        match self.args.json {
            true => output::json(json)?,
            false => output::print(&text.to_string()),
        }
        match damaged {
            true => Err(Failure::new("something of it is damaged or missing, as shown")),
            false => Ok(()),
        }
    }

    fn seen<T: Display>(&self, seen: &Inspected<T>, found: Value, damaged: bool) -> Result<()> {
        self.show(seen, &json::seen(seen, found), damaged)
    }

    fn labels(&self, inspector: &Inspector) -> Result<()> {
        let devices = inspector.labels();
        let damaged = devices.iter().any(|device| {
            let mut states = device.labels.iter();
            device.labels.is_empty() && device.l2_device.is_none()
                || states.any(|(_, state)| !matches!(state, LabelState::Sound(label) if label.objection.is_none()))
        });
        let text: String = devices.iter().map(ToString::to_string).collect();
        self.show(&text, &json::labels(&devices), damaged)
    }

    fn uberblocks(&self, inspector: &Inspector) -> Result<()> {
        let look = inspector.uberblocks()?;
        // Roots of old groups are overwritten: that is no damage.
        let newest = look.found.first();
        let bad = newest.is_none_or(|newest| newest.root_problem.is_some());
        self.show(&look, &json::uberblocks(&look), bad || !look.damaged.is_empty())
    }

    fn datasets(&self, inspector: &Inspector) -> Result<()> {
        let group = inspector.txg(self.args.as_of)?;
        let Inspected { txg, notices, found } = group;
        let text: String = found.datasets.iter().map(ToString::to_string).collect();
        let damaged = !found.damage.is_empty();
        let json = json::datasets(&found);
        self.seen(
            &Inspected { txg, notices, found: format!("{text}{}", found.damage) },
            json,
            damaged,
        )
    }

    fn block(
        &self,
        inspector: &Inspector,
        (set, of, block, level): (ObjsetName<'_>, BlockOwner, u64, u8),
        raw: bool,
    ) -> Result<()> {
        let look = inspector.block(set, of, (block, level), self.args.as_of)?;
        if raw {
            let none = || Failure::new(format!("block {block}: it is a hole, or no copy is good"));
            return write_raw(look.found.content.as_deref().ok_or_else(none)?);
        }
        let damaged = look.found.copies.iter().any(|copy| copy.problem.is_some());
        self.seen(&look, json::block(&look.found), damaged)
    }

    fn bytes(&self, inspector: &Inspector, place: &str, raw: bool) -> Result<()> {
        let parts: Vec<&str> = place.split(':').collect();
        let [device, offset, len] = &*parts else {
            let text = format!(
                "`{place}` is no place such as 0:0x40000:4096; or give dataset, object and block"
            );
            return Err(Failure::usage(text));
        };
        let device = parse(device, "a device's number")?;
        let device = u16::try_from(device)
            .map_err(|_| Failure::usage(format!("`{device}` is not a device's number")))?;
        let (offset, len) = (parse(offset, "an offset")?, parse(len, "a number of bytes")?);
        let look = inspector.bytes(device, offset, len)?;
        match raw {
            true => write_raw(&look.bytes),
            false => self.show(&look, &json::bytes(&look), false),
        }
    }
}

fn write_raw(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // Whoever reads it has enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::new(format!("standard output: {error}"))),
    }
}
