//! Files that are written whole or not at all.
//!
//! A file is written under a temporary name in its own folder, flushed to the disk and renamed: whoever looks finds the
//! old file or the new one, never a part. A write that fails leaves nothing behind.

use crate::error::{Error, Result};
use crate::hash;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Who may read a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever the process's umask lets.
    Shared,
    /// Its owner alone: keys.
    Private,
}

/// Replace `path` by what `fill` writes.
pub fn write_with(path: &Path, access: Access, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let folder = parent(path);
    let (file, temporary) =
        Temporary::new(&folder, |path| new_file(path, access)).map_err(|e| Error::io(&folder, e))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    fill(&mut out).and_then(|()| out.flush()).map_err(|e| Error::io(path, e))?;
    let file = out.into_inner().map_err(|e| Error::io(path, e.into_error()))?;
    file.sync_all().map_err(|e| Error::io(path, e))?;
    drop(file);
    temporary.rename(path)?;
    sync_folder(&folder)
}

/// Replace `path` by `bytes`.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, Access::Shared, |out| out.write_all(bytes))
}

/// Replace `path` by `bytes`, readable by its owner alone.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, Access::Private, |out| out.write_all(bytes))
}

/// Fill the folder `dir`: a new one appears complete, under its name, or not at all; into one that exists, `fill`
/// writes directly, so its files should be written by [`write_with`], the one that makes the others valid last.
pub fn fill_folder(dir: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if dir.is_dir() {
        return fill(dir);
    }
    if dir.exists() {
        return Err(Error::file(dir, "is a file, and a folder is to be written there: choose another name"));
    }
    let above = parent(dir);
    std::fs::create_dir_all(&above).map_err(|e| Error::io(&above, e))?;
    let ((), temporary) = Temporary::new(&above, |path| std::fs::create_dir(path)).map_err(|e| Error::io(&above, e))?;
    fill(&temporary.path)?;
    // `rename` moves a folder onto an empty folder or onto nothing; onto a full one that appeared meanwhile it fails.
    temporary.rename(dir)?;
    sync_folder(&above)
}

/// Make `dir`, with those above it that are missing, for its owner alone. One that is there already is left as it is: whoever made it
/// chose who may look in, and what is private in it is private by itself.
pub fn private_folder(dir: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(dir).map_err(|e| Error::io(dir, e))
}

/// Whether `dir` may become a new folder: absent, or there and empty.
pub fn must_be_new(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        let mut entries = std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))?;
        if entries.next().is_some() {
            return Err(Error::file(dir, "is not empty, and nothing there is overwritten: choose a new folder"));
        }
    } else if dir.exists() {
        return Err(Error::file(dir, "is a file, and a folder is to be written there: choose another name"));
    }
    Ok(())
}

/// Whether `path` may become a new file: absent, in a folder that is there.
pub fn must_be_new_file(path: &Path) -> Result<()> {
    // A link counts even where it leads nowhere: writing would replace it.
    if path.symlink_metadata().is_ok() {
        return Err(Error::file(path, "exists, and nothing is overwritten: choose another name"));
    }
    let folder = parent(path);
    if !folder.is_dir() {
        return Err(Error::file(path, format!("there is no folder {} to write it to", folder.display())));
    }
    Ok(())
}

/// Whether two names of files, there or not, are of the same file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let in_folder = || Some(parent(path).canonicalize().ok()?.join(path.file_name()?));
        path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
    };
    place(a) == place(b)
}

/// Whether files can be written into the folder `dir`, there or not. It is tried out, and nothing stays behind.
pub fn must_be_writable(dir: &Path) -> Result<()> {
    let refuse = |e: io::Error| Error::file(dir, format!("cannot be written ({e}): work in a folder that can"));
    let made = match std::fs::create_dir(dir) {
        Ok(()) => true,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            if !dir.is_dir() {
                return Err(Error::file(dir, "is a file, and a folder is to be written there: move it out of the way"));
            }
            false
        }
        Err(e) => return Err(refuse(e)),
    };
    let tried = Temporary::new(dir, |path| new_file(path, Access::Private)).map(drop);
    if made {
        std::fs::remove_dir(dir).map_err(refuse)?;
    }
    tried.map_err(refuse)
}

/// Read a whole file as text, with a sentence for each way in which it is not one.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = 1 + e.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count();
        Error::file(
            path,
            format!("line {line} is not valid UTF-8 (byte {at}): is this a text file in another encoding?"),
        )
    })
}

/// Read a whole file, which must be one.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    must_be_file(path)?;
    std::fs::read(path).map_err(|e| Error::io(path, e))
}

/// Refuse what is missing or a folder.
pub fn must_be_file(path: &Path) -> Result<()> {
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::file(path, "there is no such file"),
        _ => Error::io(path, e),
    })?;
    if meta.is_dir() {
        return Err(Error::file(path, "is a folder where a file is expected"));
    }
    Ok(())
}

/// Print `text` to stdout. A reader that has gone away (`| head`) is no error; any other failure is one.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::io("stdout", e)),
        _ => Ok(()),
    }
}

/// A line on stderr, in one piece: ranks and threads may write there at once, and their lines must not mix. Where there is no stderr any more,
/// nobody reads.
pub fn tell(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// A file or folder under a name of its own, `.ferret-` and random letters; removed when dropped, unless it was renamed.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// Let `make` create it in `folder`, under a name that nothing there has.
    fn new<T>(folder: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, Self)> {
        loop {
            let mut random = [0; 5];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            let path = folder.join(format!(".ferret-{}", hash::hex(&random)));
            match make(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => return Ok((made?, Self { path })),
            }
        }
    }

    /// Give it its name. What had that name is replaced.
    fn rename(mut self, to: &Path) -> Result<()> {
        std::fs::rename(&self.path, to).map_err(|e| Error::io(to, e))?;
        // Its old name is nobody's now, and must not be removed; the empty path is one that cannot be.
        std::mem::take(&mut self.path);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure.
        let _ = if self.path.is_dir() { std::fs::remove_dir_all(&self.path) } else { std::fs::remove_file(&self.path) };
    }
}

/// Create a file that was not there: a link that somebody left under its name is not followed.
fn new_file(path: &Path, access: Access) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if access == Access::Shared { 0o666 } else { 0o600 });
    }
    #[cfg(not(unix))]
    let _ = access;
    options.open(path)
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Make a rename in `folder` durable. Only Unix lets a folder be opened for that.
fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|f| f.sync_all()).map_err(|e| Error::io(folder, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_keeps_the_old_file_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write(&path, b"old").unwrap();
        let failed = write_with(&path, Access::Shared, |out| {
            out.write_all(&[0; 100_000])?;
            Err(io::Error::other("disk full"))
        });
        assert!(failed.unwrap_err().to_string().contains("disk full"));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_folder_does_not_appear() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("x/new");
        let failed = fill_folder(&target, |d| {
            write(&d.join("config.json"), b"{}")?;
            Err(Error::usage("stop"))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_dir(dir.path().join("x")).unwrap().count(), 0);
        fill_folder(&target, |d| write(&d.join("config.json"), b"{}")).unwrap();
        assert_eq!(std::fs::read(target.join("config.json")).unwrap(), b"{}");
        assert!(must_be_new(&target).is_err());
    }

    #[test]
    fn a_folder_is_tried_out_and_nothing_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (new, file) = (dir.path().join("new"), dir.path().join("file"));
        must_be_writable(&new).unwrap();
        assert!(!new.exists());
        std::fs::create_dir(&new).unwrap();
        must_be_writable(&new).unwrap();
        assert_eq!(std::fs::read_dir(&new).unwrap().count(), 0);
        write(&file, b"x").unwrap();
        assert!(must_be_writable(&file).unwrap_err().to_string().contains("is a file"));
        assert!(must_be_writable(&file.join("below")).unwrap_err().to_string().contains("cannot be written"));
    }

    #[test]
    fn one_file_by_two_names_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("x")).unwrap();
        assert!(same_file(&at("a"), &at("x/../a")) && !same_file(&at("a"), &at("x/a")));
        assert!(same_file(Path::new("a"), Path::new("./a")));
        must_be_new_file(&at("a")).unwrap();
        write(&at("a"), b"x").unwrap();
        assert!(same_file(&at("a"), &at("x/../a")));
        assert!(must_be_new_file(&at("x/../a")).unwrap_err().to_string().contains("exists"));
        assert!(must_be_new_file(&at("y/a")).unwrap_err().to_string().contains("no folder"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("nowhere"), at("link")).unwrap();
            assert!(must_be_new_file(&at("link")).is_err());
        }
    }

    #[cfg(unix)]
    #[test]
    fn private_files_are_their_owners() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write_private(&path, b"k").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        let below = dir.path().join("new/below");
        private_folder(&below).unwrap();
        assert_eq!((mode(&below), mode(below.parent().unwrap())), (0o700, 0o700));
        // One that is there stays as its owner made it.
        std::fs::set_permissions(&below, std::fs::Permissions::from_mode(0o750)).unwrap();
        private_folder(&below).unwrap();
        assert_eq!(mode(&below), 0o750);
    }
}
