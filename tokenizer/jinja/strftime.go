package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime is Python's datetime.strftime in the C locale; unknown directives
// stay as they are (glibc).
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := true
		c := format[i]
		if c == '-' && i+1 < len(format) {
			i++
			c, pad = format[i], false
		}
		two := func(n int) {
			if pad {
				fmt.Fprintf(&b, "%02d", n)
			} else {
				fmt.Fprintf(&b, "%d", n)
			}
		}
		switch c {
		case 'Y':
			fmt.Fprintf(&b, "%d", t.Year())
		case 'y':
			two(t.Year() % 100)
		case 'm':
			two(int(t.Month()))
		case 'd':
			two(t.Day())
		case 'e':
			fmt.Fprintf(&b, "%2d", t.Day())
		case 'H':
			two(t.Hour())
		case 'I':
			two((t.Hour()+11)%12 + 1)
		case 'M':
			two(t.Minute())
		case 'S':
			two(t.Second())
		case 'f':
			fmt.Fprintf(&b, "%06d", t.Nanosecond()/1000)
		case 'j':
			if pad {
				fmt.Fprintf(&b, "%03d", t.YearDay())
			} else {
				fmt.Fprintf(&b, "%d", t.YearDay())
			}
		case 'B':
			b.WriteString(t.Month().String())
		case 'b', 'h':
			b.WriteString(t.Month().String()[:3])
		case 'A':
			b.WriteString(t.Weekday().String())
		case 'a':
			b.WriteString(t.Weekday().String()[:3])
		case 'u':
			fmt.Fprintf(&b, "%d", (int(t.Weekday())+6)%7+1)
		case 'w':
			fmt.Fprintf(&b, "%d", int(t.Weekday()))
		case 'p':
			b.WriteString(t.Format("PM"))
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'T', 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 'Z', 'z': // datetime.now() is naive: no zone
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '%':
			b.WriteByte('%')
		default:
			b.WriteByte('%')
			if !pad {
				b.WriteByte('-')
			}
			b.WriteByte(c)
		}
	}
	return b.String()
}
