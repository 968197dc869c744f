//! `forebay inspect`: shows on-disk structures without an import and without locks.
//!
//! `forebay_pool::inspect` reads the structures, and formats them as text and as JSON. This module
//! has the command line. The command works on imported, exported and damaged pools.

use std::fmt::{self, Display};
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay_pool::inspect::{
    BlockOwner, Damage, DatasetInfo, DeviceLabelsInfo, Inspected, Inspector, LabelState,
    ObjsetName, TxgInfo,
};
use serde::Serialize;

use crate::control::client::{self, Target};
use crate::error::{Failure, Result};
use crate::{object_stores, output, pools};

/// The dataset name that stands for the pool's own objects.
const OWN: &str = "-";
/// The object number that stands for the blocks of dnodes.
const DNODES: &str = "dnodes";

#[derive(Debug, Args)]
#[command(
    subcommand_precedence_over_arg = true,
    after_help = "Examples:\n  \
        forebay inspect tank.img label\n  \
        forebay inspect tank uberblocks              an imported pool, by its name\n  \
        forebay inspect /dev/sdb /dev/sdc txg        the newest transaction group, its datasets and space\n  \
        forebay inspect tank.img object main 1       an object of dataset main\n  \
        forebay inspect tank.img zap main 1          a directory, with histograms of its leaves\n  \
        forebay inspect tank.img block main 7 0      the first block of object 7\n  \
        forebay inspect tank.img block 0:0x40000:512  bytes of device 0\n  \
        forebay inspect s3://bucket/tank datasets    a pool on an object store\n\n\
        The command writes nothing and takes no lock. Changes that are only in the memory of a daemon are not visible.\n\
        Exit code: 0 if the structures shown are sound, 1 if one is damaged or missing."
)]
pub(crate) struct InspectArgs {
    /// Devices of a pool in any order (some may be missing), or the name of an imported pool
    #[arg(required = true, value_name = "DEVICE|POOL")]
    devices: Vec<String>,
    #[command(subcommand)]
    structure: Structure,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Show this transaction group instead of the newest, as far as its blocks still exist
    #[arg(long = "as-of", global = true, value_name = "TXG")]
    as_of: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum Structure {
    /// Show the labels at both ends of each device
    #[command(alias = "labels")]
    Label,
    /// Show the uberblock rings, and which root blocks can be read
    #[command(alias = "uberblock")]
    Uberblocks,
    /// Show a transaction group: its root block, space, intent log and datasets
    Txg {
        /// Number of the transaction group [default: newest]
        txg: Option<u64>,
    },
    /// Show the datasets with their settings
    Datasets,
    /// Show an object: its dnode, attributes, and block tree by levels
    Object {
        /// Name of the dataset, or `-` for the pool's own objects
        dataset: String,
        /// Number of the object
        number: u64,
    },
    /// Show a directory: counts and histograms of its leaves
    Zap {
        /// Name of the dataset, or `-` for the pool's own objects
        dataset: String,
        /// Number of the directory
        number: u64,
    },
    /// Show a block: DATASET OBJECT BLOCK, or DEVICE:OFFSET:BYTES
    Block {
        /// Name of the dataset (`-`: the pool's own objects), or an extent such as 0:0x40000:4096
        #[arg(value_name = "DATASET|EXTENT")]
        extent: String,
        /// Number of the object, or `dnodes`
        object: Option<String>,
        /// Number of the block
        #[arg(requires = "object")]
        block: Option<u64>,
        /// Level of the block in the tree: 0 for data, 1 and up for indirect blocks
        #[arg(long, default_value_t = 0)]
        level: u8,
        /// Write only the bytes of the block to standard output
        #[arg(long, conflicts_with = "json")]
        raw: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// If the structure cannot be read. A damaged structure is printed first.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let paths = paths(&args.devices)?;
    let inspector = match paths.iter().find_map(|path| object_stores::url(path)) {
        Some(url) => Inspector::new(vec![object_stores::open_to_inspect(url)?])?,
        None => Inspector::open(&paths)?,
    };
    let printer = Printer { args };
    match &args.structure {
        Structure::Label => printer.labels(&inspector),
        Structure::Uberblocks => printer.uberblocks(&inspector),
        Structure::Txg { txg } => {
            let group = inspector.txg(txg.or(args.as_of))?;
            printer.show(&group, !group.found.damage.is_empty())
        }
        Structure::Datasets => printer.datasets(&inspector),
        Structure::Object { dataset, number } => {
            let object = inspector.object(set(dataset), *number, args.as_of)?;
            printer.show(&object, !object.found.damage.is_empty())
        }
        Structure::Zap { dataset, number } => {
            let zap = inspector.directory(set(dataset), *number, args.as_of)?;
            printer.show(&zap, !zap.found.damage.is_empty())
        }
        Structure::Block { extent, object, block, level, raw } => match (object, block) {
            (None, _) => printer.bytes(&inspector, extent, *raw),
            (Some(object), Some(block)) => {
                let of = match &**object {
                    DNODES => BlockOwner::Dnodes,
                    number => BlockOwner::Object(parse(number, "an object's number, or `dnodes`")?),
                };
                printer.block(&inspector, (set(extent), of, *block, *level), *raw)
            }
            (Some(_), None) => {
                let text =
                    "block: give dataset, object and block, or an extent such as 0:0x40000:4096";
                Err(Failure::usage(text))
            }
        },
    }
}

/// Paths of the devices that the arguments name.
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

/// Parses a number, hexadecimal after `0x`.
fn parse(text: &str, what: &str) -> Result<u64> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| {
        Failure::usage(format!("`{text}` is not {what}; see `forebay inspect --help`"))
    })
}

/// The labels of all devices.
#[derive(Serialize)]
struct Labels(Vec<DeviceLabelsInfo>);

impl Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|device| write!(f, "{device}"))
    }
}

/// The datasets of a txg.
#[derive(Serialize)]
struct Datasets {
    datasets: Vec<DatasetInfo>,
    damage: Damage,
}

impl Display for Datasets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.datasets.iter().try_for_each(|dataset| write!(f, "{dataset}"))?;
        write!(f, "{}", self.damage)
    }
}

/// Prints structures in the chosen format.
struct Printer<'a> {
    args: &'a InspectArgs,
}

impl Printer<'_> {
    fn show(&self, shown: &(impl Display + Serialize), damaged: bool) -> Result<()> {
        match self.args.json {
            true => output::json(shown)?,
            false => output::print(&shown.to_string()),
        }
        match damaged {
            true => Err(Failure::new(
                "a structure shown above is damaged or missing; run `forebay check` or `forebay scrub` on the pool",
            )),
            false => Ok(()),
        }
    }

    fn labels(&self, inspector: &Inspector) -> Result<()> {
        let devices = inspector.labels();
        let damaged = devices.iter().any(|device| {
            let mut positions = device.labels.iter();
            device.labels.is_empty() && device.l2_device.is_none()
                || positions.any(|position| !matches!(&position.state, LabelState::Sound { label } if label.objection.is_none()))
        });
        self.show(&Labels(devices), damaged)
    }

    fn uberblocks(&self, inspector: &Inspector) -> Result<()> {
        let look = inspector.uberblocks()?;
        // Root blocks of old transaction groups are overwritten, which is not damage.
        let newest = look.found.first();
        let bad = newest.is_none_or(|newest| newest.root_problem.is_some());
        self.show(&look, bad || !look.damaged.is_empty())
    }

    fn datasets(&self, inspector: &Inspector) -> Result<()> {
        let group = inspector.txg(self.args.as_of)?;
        let Inspected { txg, notices, found: TxgInfo { datasets, damage, .. } } = group;
        let damaged = !damage.is_empty();
        let datasets = Inspected { txg, notices, found: Datasets { datasets, damage } };
        self.show(&datasets, damaged)
    }

    fn block(
        &self,
        inspector: &Inspector,
        (set, of, block, level): (ObjsetName<'_>, BlockOwner, u64, u8),
        raw: bool,
    ) -> Result<()> {
        let look = inspector.block(set, of, (block, level), self.args.as_of)?;
        if raw {
            let none = || {
                Failure::new(format!(
                    "block {block}: is a hole, or has no good copy; omit --raw for details"
                ))
            };
            return write_raw(look.found.content.as_deref().ok_or_else(none)?);
        }
        let damaged = look.found.copies.iter().any(|copy| copy.problem.is_some());
        self.show(&look, damaged)
    }

    fn bytes(&self, inspector: &Inspector, extent: &str, raw: bool) -> Result<()> {
        let parts: Vec<&str> = extent.split(':').collect();
        let [device, offset, len] = &*parts else {
            let text = format!(
                "`{extent}` is not an extent such as 0:0x40000:4096; give one, or dataset, object and block"
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
            false => self.show(&look, false),
        }
    }
}

fn write_raw(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // The reader closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Failure::new(format!("standard output: {error}"))),
    }
}
