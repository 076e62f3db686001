//! What is not delivered yet, on disk: a file each, written whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::delivery::Parcel;

const ENDING: &str = "json";
const ABANDONED: Duration = Duration::from_secs(3_600);

/// A folder of parcels. Several processes may share it: a parcel that is delivered twice gets the first answer again.
#[derive(Debug, Clone)]
pub(crate) struct Spool(PathBuf);

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    /// Seconds since 1970 by this machine's clock: the monotonic one does not outlive the process.
    saved_at: u64,
    parcel: Parcel,
}

/// A parcel of an earlier run.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) file: PathBuf,
    pub(crate) parcel: Parcel,
    pub(crate) age: Duration,
}

impl Spool {
    /// Makes the folder where it is not there, and tries to write into it.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for_owner_only(folder, 0o700)?;
        let probe = folder.join(format!(".probe-{}", Uuid::new_v4()));
        fs::write(&probe, b"")?;
        fs::remove_file(probe)?;
        Ok(Self(folder.to_owned()))
    }

    /// Write it, so that it survives a crash from here on.
    pub(crate) fn save(&self, parcel: &Parcel) -> io::Result<PathBuf> {
        let stored = Stored { saved_at: now(), parcel: parcel.clone() };
        let name = Uuid::new_v4();
        let unfinished = self.0.join(format!(".{name}"));
        let file = self.0.join(format!("{name}.{ENDING}"));
        let mut to = fs::File::create_new(&unfinished)?;
        for_owner_only(&unfinished, 0o600)?;
        to.write_all(&serde_json::to_vec(&stored)?)?;
        to.sync_all()?;
        fs::rename(&unfinished, &file)?;
        fs::File::open(&self.0)?.sync_all()?;
        Ok(file)
    }

    /// What earlier runs left. A file that cannot be read is set aside and said.
    pub(crate) fn load(&self) -> Vec<Kept> {
        let names = match fs::read_dir(&self.0) {
            Ok(names) => names,
            Err(error) => {
                tracing::error!("the spool cannot be read: {error}");
                return vec![];
            }
        };
        let files = names.flatten().map(|name| name.path());
        let files = files.inspect(|file| remove_if_abandoned(file));
        files
            .filter(|file| file.extension().is_some_and(|ending| ending == ENDING))
            .filter_map(|file| match read(&file) {
                Ok(stored) => Some(Kept { age: Duration::from_secs(now().saturating_sub(stored.saved_at)), parcel: stored.parcel, file }),
                // Another process that shares the folder was quicker.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => {
                    let aside = file.with_extension("unreadable");
                    tracing::error!("{} cannot be read, and is kept as {}", file.display(), aside.display());
                    let _ = fs::rename(&file, aside);
                    None
                }
            })
            .collect()
    }
}

/// It is delivered.
pub(crate) fn remove(file: &Path) {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!("{} cannot be removed: {error}", file.display());
        }
        _ => {}
    }
}

/// What a process was writing when it was killed. Another one that shares the folder may be writing its own at this moment.
fn remove_if_abandoned(file: &Path) {
    let unfinished = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let written = fs::metadata(file).and_then(|about| about.modified()).ok();
    if unfinished && written.and_then(|when| when.elapsed().ok()).is_some_and(|age| age > ABANDONED) {
        remove(file);
    }
}

fn read(file: &Path) -> io::Result<Stored> {
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(unix)]
fn for_owner_only(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn for_owner_only(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dto::{Holder, RuntimeReleaseJobRequestDto};
    use crate::LockToken;

    fn parcel() -> Parcel {
        let holder = Holder { runtime_instance_id: "one".to_owned(), attempt_no: 1, lock_token: LockToken::from("token".to_owned()) };
        let body = RuntimeReleaseJobRequestDto { holder, reason: None };
        Parcel::Release { job_id: Uuid::new_v4(), body }
    }

    #[test]
    fn what_is_saved_is_there_for_the_next_run_and_gone_when_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = Spool::open(&folder.path().join("deep/er")).expect("it opens");
        let file = spool.save(&parcel()).expect("it is saved");
        let again = Spool::open(&folder.path().join("deep/er")).expect("it opens");
        let [kept] = &again.load()[..] else { panic!("one parcel") };
        assert_eq!(kept.file, file);
        assert!(matches!(&kept.parcel, Parcel::Release { body, .. } if body.holder.lock_token.expose() == "token"));
        remove(&file);
        assert!(again.load().is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_set_aside_and_a_half_written_one_is_not_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let spool = Spool::open(folder.path()).expect("it opens");
        fs::write(folder.path().join("a.json"), b"{").expect("it is written");
        fs::write(folder.path().join(".half"), b"{").expect("it is written");
        let old = fs::File::create(folder.path().join(".old")).expect("it is written");
        old.set_modified(SystemTime::now() - 2 * ABANDONED).expect("it is older");
        assert!(spool.load().is_empty());
        assert!(folder.path().join(".half").exists());
        assert!(!folder.path().join(".old").exists());
        assert!(folder.path().join("a.unreadable").exists());
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let file = Spool::open(folder.path()).and_then(|spool| spool.save(&parcel())).expect("it is saved");
        let mode = fs::metadata(file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
