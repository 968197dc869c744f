//! `forebay trace record`.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use zstd::stream::write::Encoder;

use super::create;
use crate::args::TraceRecordArgs;
use crate::control::Request;
use crate::control::client::{self, Part};
use crate::control::messages::TraceReport;
use crate::error::{Failure, Result};
use crate::{output, units};

/// The fastest level that compresses well: the daemon drops what comes while the client is busy.
const LEVEL: i32 = 1;
/// What was written before can be read even if the recording is killed.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// The file, created when the first bytes arrive.
struct Output<'a> {
    args: &'a TraceRecordArgs,
    file: Option<Encoder<'static, File>>,
    bytes: u64,
    flushed: Option<Instant>,
}

pub(super) fn run(args: &TraceRecordArgs) -> Result<()> {
    let (process, pool) = client::pool_in_use(args.pool.as_deref())?;
    if !args.force && args.output.symlink_metadata().is_ok() {
        create(&args.output, false)?;
    }
    let stop = output::interruptible()?;
    let bar = ProgressBar::new_spinner();
    bar.set_draw_target(output::target());
    let mut file = Output { args, file: None, bytes: 0, flushed: None };
    let request = Request::Trace { pool: pool.guid, seconds: args.seconds, names: args.names };
    let mut receive = |part: Part<'_>| {
        if let Part::Raw(bytes) = part {
            file.put(bytes)?;
            bar.set_message(format!("{} recorded, Ctrl-C ends", units::bytes(file.bytes)));
            bar.tick();
        }
        Ok(())
    };
    let received = process.receive_until::<TraceReport>(&request, &mut receive, &stop);
    bar.finish_and_clear();
    let shown = args.output.display();
    let was_begun = file.file.is_some();
    let ended = file.finish();
    let report = received.map_err(|failure| match was_begun {
        true => Failure::new(format!("{failure}; {shown} has the trace up to that moment")),
        false => failure,
    })?;
    ended?;
    let dropped = match report.dropped {
        0 => String::new(),
        dropped => format!(", {dropped} more came too fast and are missing"),
    };
    output::line(&format!(
        "{shown}: {} accesses in {:.1} s, {} read ahead{dropped}",
        report.accesses,
        report.duration_us as f64 / 1e6,
        report.read_ahead
    ));
    Ok(())
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let path = &self.args.output;
        let failed = |error: std::io::Error| Failure::about(path, "write it", &error);
        if self.file.is_none() {
            let file = create(path, self.args.force)?;
            self.file = Some(Encoder::new(file, LEVEL).map_err(failed)?);
        }
        self.bytes += bytes.len() as u64;
        let file = self.file.as_mut().expect("created above");
        file.write_all(bytes).map_err(failed)?;
        if self.flushed.is_none_or(|at| at.elapsed() >= FLUSH_PERIOD) {
            file.flush().map_err(failed)?;
            self.flushed = Some(Instant::now());
        }
        Ok(())
    }

    /// Ends the file.
    fn finish(self) -> Result<()> {
        let path = &self.args.output;
        let ended = self.file.map_or(Ok(()), |file| file.finish().map(drop));
        ended.map_err(|error| Failure::about(path, "write it", &error))
    }
}
