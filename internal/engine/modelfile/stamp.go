package modelfile

import (
	"io/fs"
	"time"
)

// Stamp tells one state of a file from another without reading it. The kernel changes the
// times of a file before its first byte changes, so bytes that were read before an equal
// stamp was taken are those of the earlier stamp.
type Stamp struct {
	Size     int64
	Modified int64  // in nanoseconds since 1970
	Changed  int64  // as Modified, of the inode: nobody can set it; 0 where the system has none
	Device   uint64 // 0 where the system has none
	Inode    uint64 // as Device
}

// StampOf is the stamp of what Stat returned.
func StampOf(st fs.FileInfo) Stamp {
	s := Stamp{Size: st.Size(), Modified: st.ModTime().UnixNano()}
	s.addInode(st)
	return s
}

// Settled reports whether a file of this stamp, if it changes from now on, gets another
// stamp. A file system counts time in steps: two changes within one step look alike.
func (s Stamp) Settled(now time.Time) bool {
	step := 50 * time.Millisecond // several ticks of a kernel's clock
	if s.Modified%int64(time.Second) == 0 && s.Changed%int64(time.Second) == 0 {
		step = 2 * time.Second // a file system that counts seconds, or pairs of them
	}
	return now.UnixNano()-max(s.Modified, s.Changed) > int64(step)
}
