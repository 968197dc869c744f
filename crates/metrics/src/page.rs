//! The page: three files that are part of the program.
//!
//! They need no build step and load nothing from elsewhere. Script and style are files of their
//! own, so that the page works under a policy that forbids inline ones.

/// A file of the page.
pub(crate) struct File {
    pub(crate) content_type: &'static str,
    pub(crate) content: &'static str,
}

/// The file at this path.
pub(crate) fn file(path: &str) -> Option<File> {
    let (content_type, content) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("page/index.html")),
        "/page.css" => ("text/css; charset=utf-8", include_str!("page/page.css")),
        "/page.js" => ("text/javascript; charset=utf-8", include_str!("page/page.js")),
        _ => return None,
    };
    Some(File { content_type, content })
}
