//! `forebay trace convert`.
//!
//! Only accesses that somebody asked for are written: read-ahead depends on the cache that ran.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use forebay_pool::BlockLabel;
use forebay_pool::trace::{TraceItem, TraceOutcome, TraceRecord};

use super::{Reader, Replacement, open, unreadable};
use crate::args::TraceFormat;
use crate::error::{Failure, Result};
use crate::output;

/// Most accesses that are converted to oracleGeneral, which needs all in memory.
const ACCESSES_MAX: usize = 1 << 28;

pub(super) fn run(from: &Path, format: TraceFormat, to: &Path, force: bool) -> Result<()> {
    let mut reader = open(from)?;
    let mut out = BufWriter::new(Replacement::begin(to, force)?);
    let accesses = match format {
        TraceFormat::Text => put_text(from, &mut reader, to, &mut out)?,
        TraceFormat::OracleGeneral => put_oracle_general(from, &mut reader, to, &mut out)?,
    };
    let out = out.into_inner().map_err(|error| Failure::about(to, "write it", error.error()))?;
    out.finish()?;
    let cut = match reader.is_complete() {
        true => "",
        false => "; the end of the trace is missing: the recording failed, or the file was cut",
    };
    output::line(&format!("{}: {accesses} accesses{cut}", to.display()));
    Ok(())
}

/// The next access that somebody asked for.
fn next(from: &Path, reader: &mut Reader) -> Result<Option<TraceRecord>> {
    while let Some(item) = reader.next_item().map_err(|error| unreadable(from, &error))? {
        match item {
            TraceItem::Record(record) if record.outcome != TraceOutcome::ReadAhead => {
                return Ok(Some(record));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn put_text(from: &Path, reader: &mut Reader, to: &Path, out: &mut impl Write) -> Result<u64> {
    let failed = |error: std::io::Error| Failure::about(to, "write it", &error);
    writeln!(out, "time_us,key,size,op,outcome,class,dataset,kind,object,block").map_err(failed)?;
    let mut accesses = 0;
    while let Some(record) = next(from, reader)? {
        accesses += 1;
        let (kind, object) = match record.label {
            BlockLabel::Object(number) => ("object", number),
            BlockLabel::Indirect => ("indirect", 0),
            BlockLabel::Dnodes => ("dnodes", 0),
            BlockLabel::Unknown => ("unknown", 0),
        };
        let outcome = if record.outcome == TraceOutcome::Hit { "hit" } else { "miss" };
        let class = if record.is_metadata { "metadata" } else { "data" };
        writeln!(
            out,
            "{},{},{},read,{outcome},{class},{},{kind},{object},{}",
            record.time_us,
            record.key(),
            record.bytes,
            record.dataset,
            record.block
        )
        .map_err(failed)?;
    }
    Ok(accesses)
}

/// Each access: time in seconds, u32; key, u64; bytes, u32; index of the next access to the key,
/// from 0 on, or -1, i64. Little-endian, without padding.
fn put_oracle_general(
    from: &Path,
    reader: &mut Reader,
    to: &Path,
    out: &mut impl Write,
) -> Result<u64> {
    let mut accesses: Vec<(u32, u64, u32)> = Vec::new();
    let mut seconds = 0;
    while let Some(record) = next(from, reader)? {
        if accesses.len() == ACCESSES_MAX {
            return Err(Failure::new(format!(
                "{}: more than {ACCESSES_MAX} accesses; record a shorter trace, or convert it to text",
                from.display()
            )));
        }
        // Times may be a little out of order, which the format does not allow.
        seconds = seconds.max(u32::try_from(record.time_us / 1_000_000).unwrap_or(u32::MAX));
        accesses.push((seconds, record.key(), record.bytes));
    }
    let mut nexts = vec![-1_i64; accesses.len()];
    let mut later: HashMap<u64, i64> = HashMap::new();
    for (index, (_, key, _)) in accesses.iter().enumerate().rev() {
        nexts[index] = later.insert(*key, index as i64).unwrap_or(-1);
    }
    for ((seconds, key, bytes), next) in accesses.iter().zip(nexts) {
        let mut packed = [0; 24];
        packed[..4].copy_from_slice(&seconds.to_le_bytes());
        packed[4..12].copy_from_slice(&key.to_le_bytes());
        packed[12..16].copy_from_slice(&bytes.to_le_bytes());
        packed[16..].copy_from_slice(&next.to_le_bytes());
        out.write_all(&packed).map_err(|error| Failure::about(to, "write it", &error))?;
    }
    Ok(accesses.len() as u64)
}

#[cfg(test)]
mod tests {
    use forebay_pool::trace::{TraceHeader, put_header, put_records};

    use super::*;

    fn record(time_us: u64, block: u64, outcome: TraceOutcome) -> TraceRecord {
        let label = BlockLabel::Object(9);
        TraceRecord { time_us, dataset: 2, label, block, bytes: 8192, is_metadata: false, outcome }
    }

    /// Blocks 5, 6, 5 and read-ahead of 7, with a time that goes back.
    fn converted(format: TraceFormat) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let records = [
            record(1_500_000, 5, TraceOutcome::Miss),
            record(1_500_000, 7, TraceOutcome::ReadAhead),
            record(3_000_000, 6, TraceOutcome::Miss),
            record(2_999_999, 5, TraceOutcome::Hit),
        ];
        let mut file = Vec::new();
        put_header(&mut file, &TraceHeader::default());
        put_records(&mut file, &records);
        std::fs::write(&from, file).unwrap();
        run(&from, format, &to, false).unwrap();
        assert!(run(&from, format, &to, false).unwrap_err().message.contains("--force"));
        run(&from, format, &to, true).unwrap();
        std::fs::read(&to).unwrap()
    }

    #[test]
    fn of_a_trace_that_is_cut_the_beginning_is_converted_and_of_a_damaged_one_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let mut file = Vec::new();
        put_header(&mut file, &TraceHeader::default());
        for time in 0..3 {
            put_records(&mut file, &[record(time, 5, TraceOutcome::Miss)]);
        }
        std::fs::write(&from, &file[..file.len() - 7]).unwrap();
        run(&from, TraceFormat::Text, &to, false).unwrap();
        assert_eq!(std::fs::read_to_string(&to).unwrap().lines().count(), 3);
        std::fs::write(&to, "kept").unwrap();
        // Unknown flags in the last record.
        let at = file.len() - 2;
        file[at] = 0xff;
        std::fs::write(&from, &file).unwrap();
        assert!(run(&from, TraceFormat::Text, &to, true).is_err());
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "kept");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        let special = Path::new("/dev/null");
        assert!(run(&from, TraceFormat::Text, special, true).is_err());
        assert!(special.symlink_metadata().is_ok_and(|found| !found.is_file()));
    }

    fn key(block: u64) -> u64 {
        record(0, block, TraceOutcome::Hit).key()
    }

    #[test]
    fn oracle_general_has_the_next_accesses() {
        let mut wanted = Vec::new();
        for (seconds, block, next) in [(1_u32, 5, 2_i64), (3, 6, -1), (3, 5, -1)] {
            wanted.extend_from_slice(&seconds.to_le_bytes());
            wanted.extend_from_slice(&key(block).to_le_bytes());
            wanted.extend_from_slice(&8192_u32.to_le_bytes());
            wanted.extend_from_slice(&next.to_le_bytes());
        }
        assert_eq!(converted(TraceFormat::OracleGeneral), wanted);
    }

    #[test]
    fn text_has_a_line_per_access() {
        let text = String::from_utf8(converted(TraceFormat::Text)).unwrap();
        let wanted = format!(
            "time_us,key,size,op,outcome,class,dataset,kind,object,block\n\
             1500000,{five},8192,read,miss,data,2,object,9,5\n\
             3000000,{six},8192,read,miss,data,2,object,9,6\n\
             2999999,{five},8192,read,hit,data,2,object,9,5\n",
            five = key(5),
            six = key(6)
        );
        assert_eq!(text, wanted);
    }
}
