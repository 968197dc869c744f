//! Signatures of known contents, so that a device in use is not overwritten by mistake.

/// Content, offset of its signature, and the signature. The first match counts.
const SIGNATURES: [(&str, usize, &[u8]); 17] = [
    ("a Forebay pool", 0, b"forebay\x01"),
    ("a Forebay L2 device", 0, b"forelvl"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("an XFS file system", 0, b"XFSB"),
    ("an ext2, ext3 or ext4 file system", 1080, &[0x53, 0xef]),
    ("a btrfs file system", 65600, b"_BHRfS_M"),
    ("a squashfs file system", 0, b"hsqs"),
    ("LUKS encryption", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a tar archive", 257, b"ustar"),
    ("a gzip file", 0, &[0x1f, 0x8b]),
    ("a zip archive", 0, b"PK\x03\x04"),
    ("a qcow image", 0, b"QFI\xfb"),
    ("an SQLite database", 0, b"SQLite format 3\0"),
    ("a partition table or boot sector", 510, &[0x55, 0xaa]),
];

/// Describes the content of a device, given `bytes` read at offset `start`, in words that fit after
/// "it holds". Returns `None` if all bytes are zero.
///
/// Callers should read the first and the last MiB: file systems, archives, images and partition
/// tables keep their signatures there.
pub fn content_of(start: u64, bytes: &[u8]) -> Option<String> {
    let at = bytes.iter().position(|byte| *byte != 0)?;
    let fits = |(_, at, magic): &&(&str, usize, &[u8])| {
        start == 0 && bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic))
    };
    Some(match SIGNATURES.iter().find(fits) {
        Some((name, ..)) => (*name).to_owned(),
        None => format!("data of an unknown kind at byte {}", start + at as u64),
    })
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::*;

    #[test]
    fn known_signatures_are_named_and_other_data_has_its_offset() {
        for (name, at, magic) in SIGNATURES {
            let mut bytes = vec![0; 1 << 17];
            bytes[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(content_of(0, &bytes).as_deref(), Some(name));
            let elsewhere = content_of(4096, &bytes).unwrap();
            let first = 4096 + at + magic.iter().position(|byte| *byte != 0).unwrap();
            assert_eq!(elsewhere, format!("data of an unknown kind at byte {first}"));
        }
        assert_eq!(content_of(0, &[0; 4096]), None);
        assert_eq!(content_of(0, &[]), None);
    }
}
