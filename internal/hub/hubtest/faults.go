package hubtest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Fault is the fault of a server in one request. The zero value means no fault.
type Fault struct {
	Status      int    // answer with this status
	Code        string // X-Error-Code of that answer
	RetryAfter  string
	CutAfter    int64         // close the connection after this many bytes of the body
	StallAfter  int64         // send nothing more after this many bytes
	Rate        int64         // bytes per second
	IgnoreRange bool          // send the whole file
	Flip        int64         // the byte at this place of the file is wrong; 0: none is
	Delay       time.Duration // before the answer
	Header      http.Header   // set in the answer
}

// refuse writes the answer of a fault with a status.
func (f Fault) refuse(w http.ResponseWriter) bool {
	time.Sleep(f.Delay)
	for k, v := range f.Header {
		w.Header()[k] = v
	}
	if f.Status == 0 {
		return false
	}
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	if f.Code != "" {
		w.Header().Set("X-Error-Code", f.Code)
		w.Header().Set("X-Error-Message", f.Code+" of the test")
	}
	w.WriteHeader(f.Status)
	return true
}

// serve sends content as the fault has it. etag has its quotes.
func (f Fault) serve(w http.ResponseWriter, r *http.Request, content []byte, etag string, stop <-chan struct{}) {
	if f.refuse(w) {
		return
	}
	w.Header().Set("ETag", etag)
	w.Header().Set("Accept-Ranges", "bytes")
	from, to, status := int64(0), int64(len(content)), http.StatusOK
	if v := r.Header.Get("Range"); v != "" && !f.IgnoreRange {
		if c := r.Header.Get("If-Range"); c == "" || c == etag {
			first, last, ok := strings.Cut(strings.TrimPrefix(v, "bytes="), "-")
			from, _ = strconv.ParseInt(first, 10, 64)
			if end, err := strconv.ParseInt(last, 10, 64); err == nil {
				to = min(to, end+1)
			}
			if !ok || from >= int64(len(content)) {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", len(content)))
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			status = http.StatusPartialContent
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(content)))
		}
	}
	if w.Header().Get("Content-Length") == "" {
		w.Header().Set("Content-Length", strconv.FormatInt(to-from, 10))
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	const step = 16 << 10
	for at := from; at < to; {
		end := min(at+step, to)
		for _, limit := range []int64{f.CutAfter, f.StallAfter} {
			if limit > 0 {
				end = min(end, from+limit)
			}
		}
		piece := content[at:end]
		if f.Flip >= at && f.Flip < end && f.Flip > 0 {
			piece = append([]byte(nil), piece...)
			piece[f.Flip-at] ^= 1
		}
		if _, err := w.Write(piece); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		at = end
		switch {
		case f.CutAfter > 0 && at-from >= f.CutAfter && at < to:
			panic(http.ErrAbortHandler)
		case f.StallAfter > 0 && at-from >= f.StallAfter && at < to:
			select {
			case <-r.Context().Done():
			case <-stop:
			}
			return
		case f.Rate > 0:
			time.Sleep(time.Duration(int64(len(piece)) * int64(time.Second) / f.Rate))
		}
	}
}
