//! Unpacks files, detected by their first bytes. The memory that a header asks for is bounded.

use std::io::{BufRead, BufReader};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::ReadErrorKind;

/// Extensions of packed files.
pub(super) const ENDINGS: [&str; 3] = ["gz", "xz", "zst"];

/// Bound of a decoder's window: twice that of the common tools' strongest settings.
const WINDOW_SHIFT: u32 = 27;

/// The content of a file, unpacked if it is packed.
pub(super) fn unpack<R: BufRead + 'static>(
    mut input: R,
) -> Result<Box<dyn BufRead>, ReadErrorKind> {
    let start = input.fill_buf()?;
    Ok(match start {
        // Deflate is the only method, and three bits of the flags are reserved.
        [0x1f, 0x8b, 0x08, flags, ..] if flags & 0xe0 == 0 => {
            Box::new(BufReader::new(MultiGzDecoder::new(input)))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let window_kib = 1 << (WINDOW_SHIFT - 10);
            Box::new(BufReader::new(XzReader::new_mem_limit(input, true, window_kib + 1024)))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = ZstdDecoder::with_buffer(input)?;
            decoder.window_log_max(WINDOW_SHIFT)?;
            Box::new(BufReader::new(decoder))
        }
        _ => Box::new(input),
    })
}
