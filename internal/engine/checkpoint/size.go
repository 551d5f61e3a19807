package checkpoint

import "os"

// Size returns the number of parameters and the bytes of the checkpoint's files. For a random checkpoint
// it is the bytes that its tensors would take in files.
func (c *Checkpoint) Size() (parameters, bytes int64) {
	for _, s := range c.Config.Tensors() {
		n := int64(1)
		for _, d := range s.Shape {
			n *= int64(d)
		}
		parameters += n
	}
	for _, path := range c.files {
		if st, err := os.Stat(path); err == nil {
			bytes += st.Size()
		}
	}
	if len(c.files) == 0 {
		bytes = parameters * elementBytes(c.Config.DType)
	}
	return parameters, bytes
}
