package kvcache

// pageCache assigns pages of a file to a fixed number of places in memory. A choice is the set of pages
// that one query reads. Pages of the newest choice are never evicted. If a choice is larger than the cache,
// some of its pages stay for the next choice, which reads only the others from the file.
type pageCache struct {
	at     []int32  // [pages] the place of each page, counted from 1; 0: none
	pages  []int32  // [places] the page in each place, counted from 1; 0: none
	last   []uint32 // [places] the newest choice that has the page
	choice uint32   // number of the newest choice
	next   int      // the place to try first
	full   bool     // every place has a page of the newest choice
}

func newPageCache(pages, places int) *pageCache {
	return &pageCache{at: make([]int32, pages), pages: make([]int32, places), last: make([]uint32, places)}
}

// pageCacheBytes returns the size of the tables of a pageCache.
func pageCacheBytes(pages, places int) int64 { return 4*int64(pages) + 8*int64(places) }

// begin starts the next choice.
func (c *pageCache) begin() { c.choice, c.full = c.choice+1, false }

// choose adds a page to the newest choice.
func (c *pageCache) choose(page int) {
	if place := c.at[page]; place > 0 {
		c.last[place-1] = c.choice
	}
}

// find returns the place of a page, or -1 if it is only in the file.
func (c *pageCache) find(page int) int { return int(c.at[page]) - 1 }

// put assigns a page of the newest choice to a place: a free one, or that of a page of an older choice. It
// returns the place, or -1 if there is none or the page has a place already.
func (c *pageCache) put(page int) int {
	if c.full || c.at[page] > 0 {
		return -1
	}
	for range c.pages {
		place := c.next
		c.next = (place + 1) % len(c.pages)
		if c.pages[place] > 0 && c.last[place] == c.choice {
			continue
		}
		if old := c.pages[place]; old > 0 {
			c.at[old-1] = 0
		}
		c.at[page], c.pages[place], c.last[place] = int32(place+1), int32(page+1), c.choice
		return place
	}
	c.full = true
	return -1
}
