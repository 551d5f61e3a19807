package modelfile

import (
	"io/fs"
	"syscall"
)

func (s *Stamp) addInode(st fs.FileInfo) {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		s.Changed, s.Device, s.Inode = sys.Ctim.Nano(), uint64(sys.Dev), sys.Ino //nolint:unconvert // of another width on other processors
	}
}
