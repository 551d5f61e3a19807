//go:build !linux && !darwin

package modelfile

import "io/fs"

func (*Stamp) addInode(fs.FileInfo) {}
