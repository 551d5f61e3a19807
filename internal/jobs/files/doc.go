// Package files keeps the files of batches, inputs that were uploaded and outputs that
// were written, and answers for them over HTTP. A Store is a folder of this process
// alone, or a log that several processes have copies of.
package files
