package saved

// File is the progress of the file of an idle cache.
type File struct {
	Number   uint64 // of the order; 0: none
	Written  bool
	began    int64 // when it was ordered
	after    int64 // no order before this time
	failures int   // in a row
	lacks    int64 // size of the file for which the disk had no room; 0: it had, or its room is not known
}

const (
	retryMillis = 10_000 // pause after a failed write
	maxDoubling = 6      // the time until the next attempt doubles this often
)

// Ready reports whether the cache can be ordered to a file of a disk with a number of free bytes.
func (f *File) Ready(now, free int64) bool {
	return f.Number == 0 && !f.Written && now >= f.after && f.Fits(free)
}

// Fits reports whether the file may fit into a number of free bytes. A file for which there was no room is not tried
// again until there is.
func (f *File) Fits(free int64) bool { return f.lacks <= free }

// Order begins a write.
func (f *File) Order(number uint64, now int64) { f.Number, f.began = number, now }

// Hangs reports whether a write has run for at least this number of milliseconds.
func (f *File) Hangs(now, millis int64) bool { return f.Number != 0 && now >= f.began+millis }

// End processes the answer to the order. The pause before the next attempt doubles with each failure.
func (f *File) End(d Done, now int64) {
	f.Number = 0
	if f.Written = d.Err == ""; f.Written {
		return
	}
	f.lacks = d.Lacks
	f.after = now + retryMillis<<min(f.failures, maxDoubling)
	f.failures++
}

// Disk decides whether requests wait until caches of a socket are in files. After a write that took too long, requests
// do not wait for the next restMillis, unless a write succeeds before. So a disk that hangs delays the requests of a
// socket once, not for each of its writes.
type Disk struct{ rests int64 }

const restMillis = 60_000

// RecordTimeout records a write that took too long.
func (d *Disk) RecordTimeout(now int64) { d.rests = now + restMillis }

// RecordSuccess records a write that succeeded.
func (d *Disk) RecordSuccess() { d.rests = 0 }

// Paused reports whether requests do not wait for the disk.
func (d *Disk) Paused(now int64) bool { return now < d.rests }
