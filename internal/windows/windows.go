// Package windows says when changes may begin: it evaluates the windows of Stacks and StackRollouts. All of its functions are pure, and depend on
// nothing but the windows and the time. Time zones are in the binary.
package windows

import (
	"fmt"
	"path"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // images may have no time zones

	"github.com/robfig/cron/v3"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// longest is for how long a window can be open that returns.
const longest = 7 * 24 * time.Hour

// State says whether changes may begin.
type State struct {
	// Open is true when they may.
	Open bool
	// Next is when a window opens or closes that may change that; zero when none does.
	Next time.Time
	// Message says what is waited for; empty when changes may begin.
	Message string
}

// At evaluates windows. Without any, changes may always begin. A window that is open forbids them if its policy is Deny; otherwise a window with
// the policy Allow has to be open, if there is one. An error names the number of the window that is invalid, from 1 on.
func At(windows []autov1alpha1.Window, now time.Time) (State, error) {
	state := State{Open: true}
	var denied, allowed, mayOpen bool
	var opens time.Time
	for i := range windows {
		open, edge, err := evaluate(&windows[i], now)
		if err != nil {
			return State{}, fmt.Errorf("window %d: %w", i+1, err)
		}
		state.Next = sooner(state.Next, edge)
		switch {
		case windows[i].Policy == autov1alpha1.WindowDeny:
			if open && !denied {
				denied = true
				state.Message = fmt.Sprintf("window %d forbids changes until %s", i+1, edge.UTC().Format(time.RFC3339))
			}
		case open:
			mayOpen, allowed = true, true
		default:
			mayOpen, opens = true, sooner(opens, edge)
		}
	}
	if denied || mayOpen && !allowed {
		state.Open = false
	}
	if !state.Open && !denied {
		state.Message = "no window that allows changes is open, and none opens"
		if !opens.IsZero() {
			state.Message = "the next window that allows changes opens at " + opens.UTC().Format(time.RFC3339)
		}
	}
	return state, nil
}

// Check returns why windows are invalid, with the number of the window, from 1 on; nil if they are not.
func Check(windows []autov1alpha1.Window) error {
	_, err := At(windows, time.Unix(0, 0))
	return err
}

// sooner returns the earlier of two times; zero stands for none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// evaluate reports whether the window is open, and when it closes or opens next; zero when it does not open again.
func evaluate(window *autov1alpha1.Window, now time.Time) (open bool, edge time.Time, err error) {
	if window.Cron == "" {
		return evaluateOnce(window, now)
	}
	schedule, location, err := parse(window)
	if err != nil {
		return false, time.Time{}, err
	}
	// The first opening after which the window is not closed yet. If it overlaps with a later one, the window is looked at again when it ends.
	opening := next(schedule, now.Add(-window.Window.Duration).In(location))
	switch {
	case opening.IsZero():
		return false, time.Time{}, fmt.Errorf("cron %.128q names no day of the next years, such as the 30th of February", window.Cron)
	case opening.After(now):
		return false, opening, nil
	}
	return true, opening.Add(window.Window.Duration), nil
}

// next returns when the schedule begins next in the time zone of the time; zero if it does not. The library works on instants: at a time that occurs
// twice it begins twice, but it does not begin at a time that the clock leaves out, and skips the whole day if that is midnight. So what the
// clock on the wall would show is looked at, too. A time that it leaves out is the moment when it jumps.
func next(schedule cron.Schedule, after time.Time) time.Time {
	found := schedule.Next(after)
	for wall := schedule.Next(onWall(after)); !wall.IsZero(); wall = schedule.Next(wall) {
		if at := instant(wall, after.Location()); at.After(after) {
			return sooner(found, at)
		}
	}
	return found
}

// onWall returns the date and the time of the clock, as if they were in UTC.
func onWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// instant returns when the clock shows that, for the first time.
func instant(wall time.Time, location *time.Location) time.Time {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, location)
	begin, end := t.ZoneBounds()
	switch shown := onWall(t); {
	case shown.After(wall):
		return begin
	case shown.Before(wall):
		return end
	case begin.IsZero():
		return t
	}
	_, before := begin.Add(-time.Second).Zone()
	_, offset := t.Zone()
	if earlier := t.Add(time.Duration(offset-before) * time.Second); earlier.Before(begin) && onWall(earlier).Equal(wall) {
		return earlier
	}
	return t
}

func evaluateOnce(window *autov1alpha1.Window, now time.Time) (open bool, edge time.Time, err error) {
	switch {
	case window.From == nil || window.Until == nil:
		return false, time.Time{}, fmt.Errorf("set cron and window, or from and until")
	case !window.From.Before(window.Until):
		return false, time.Time{}, fmt.Errorf("until has to be later than from")
	case now.Before(window.From.Time):
		return false, window.From.Time, nil
	case now.Before(window.Until.Time):
		return true, window.Until.Time, nil
	}
	return false, time.Time{}, nil
}

// parse returns the schedule of a window that returns, and the location of its times.
func parse(window *autov1alpha1.Window) (cron.Schedule, *time.Location, error) {
	switch {
	case window.From != nil || window.Until != nil:
		return nil, nil, fmt.Errorf("set either cron and window, or from and until")
	case window.Window == nil || window.Window.Duration <= 0 || window.Window.Duration > longest:
		return nil, nil, fmt.Errorf("window has to be longer than 0 and at most %s", longest)
	case strings.ContainsAny(window.Cron, "@="):
		// The library has more forms than the field, such as @every and TZ=.
		return nil, nil, fmt.Errorf("cron %.128q has to have five fields", window.Cron)
	}
	location, err := load(window.TimeZone)
	if err != nil {
		return nil, nil, err
	}
	schedule, err := cron.ParseStandard(window.Cron)
	if err != nil {
		return nil, nil, fmt.Errorf("cron %.128q: %w", window.Cron, err)
	}
	return schedule, location, nil
}

// locations has the time zones that were used: reading one takes longer than evaluating a window. There are a few hundred, each with one name.
var locations sync.Map

// load returns a time zone by its name in the IANA database; empty stands for UTC.
func load(name string) (*time.Location, error) {
	if found, ok := locations.Load(name); ok {
		return found.(*time.Location), nil
	}
	// Where zones are files, each has any number of other names, such as Europe//Berlin: somebody could fill the memory with them.
	isItsName := name == "" || path.Clean(name) == name && name != "Local"
	location, err := time.LoadLocation(name)
	if !isItsName || err != nil {
		return nil, fmt.Errorf("timeZone %.64q is not known: it is a name such as Europe/Berlin", name)
	}
	locations.Store(name, location)
	return location, nil
}
