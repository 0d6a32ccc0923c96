// Package reasons has the one table of the reasons of all conditions: what each means, what brings the object back to its controller, what a
// user can do, and which test causes it. The constants in the API are generated from it, docs/conditions.md and other pages are written from
// it, and the command line explains reasons with it.
//
// A new reason is a row in the file of its kind, the place that sets it, a test that causes it, and make generate. The action in its event, if
// it is none of the usual ones, is in internal/app/events.go.
package reasons

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// State is what an object with a reason is doing, and whether that counts as a failure.
type State string

// The states, as Markdown.
const (
	UpToDate         State = "ready"
	Working          State = "in progress"
	Waiting          State = "waiting"
	Transient        State = "transient"
	Stalled          State = "**Stalled**"
	WaitingOrStalled State = "waiting or **Stalled**"
	Failing          State = "failed"
	FailingOften     State = "failed, **Stalled**"
	FailingForGood   State = "failed, **Stalled** at once"
	NoFailure        State = "interrupted"
	Locked           State = "waiting, **Stalled** after 10 minutes"
	Ended            State = "succeeded"
	EndedBadly       State = "failed"
	EndedNoFailure   State = "ended, not a failure"
	Canceled         State = "failed, unless suspended"
	NotSet           State = "not used"
)

// Row describes a reason, in Markdown.
type Row struct {
	Reason string
	State  State
	// Constant is the name of the constant in the API. It defaults to the reason followed by "Reason", see Name.
	Constant string
	// Means is the meaning of the reason. When is added to the names of the wakers, and replaces the waker "time". Todo is what the user
	// can do.
	Means, When, Todo string
	// Tests are names of tests that cause the reason: the package, a dot, the function, and the subtest if there is one.
	Tests []string
	// StartsAnother says of a reason of a Stalled Stack that a request starts another update: the last update, plan or outputs are the problem. With
	// another reason, the Stack keeps the request until somebody acts.
	StartsAnother bool
}

// elsewhere means that the table of another kind declares the constant of the reason.
const elsewhere = "elsewhere"

// Name returns the name of the constant that is generated for the row; empty when the table of another kind has it.
func (r *Row) Name() string {
	switch r.Constant {
	case elsewhere:
		return ""
	case "":
		return r.Reason + "Reason"
	}
	return r.Constant
}

// Table has the reasons of a kind of object.
type Table struct {
	Kind string
	// Constants is the file with the constants, relative to the root of the repository.
	Constants string
	Rows      []Row
	// wakers is the name of the file with the wakers of each reason, see Wakers; empty for a kind with few wakers.
	wakers string
}

// The files with the constants of Stack and Program, and of Update, Workspace, Approval and StackRollout.
const (
	StackConstants  = "api/pulumi/v1/zz_generated.reasons.go"
	UpdateConstants = "api/auto/v1alpha1/zz_generated.reasons.go"
)

// Tables returns the tables of all kinds.
func Tables() []Table {
	return []Table{
		{Kind: "Stack", Constants: StackConstants, Rows: stackRows, wakers: "stack"},
		{Kind: "Update", Constants: UpdateConstants, Rows: updateRows, wakers: "update"},
		{Kind: "Workspace", Constants: UpdateConstants, Rows: workspaceRows},
		{Kind: "Approval", Constants: UpdateConstants, Rows: approvalRows},
		{Kind: "Program", Constants: StackConstants, Rows: programRows},
		{Kind: "StackRollout", Constants: UpdateConstants, Rows: rolloutRows},
	}
}

// Of returns the table of a kind, which must have one.
func Of(kind string) *Table {
	tables := Tables()
	return &tables[slices.IndexFunc(tables, func(table Table) bool { return table.Kind == kind })]
}

// Row returns the row of a reason; nil when there is none.
func (t *Table) Row(reason string) *Row {
	if i := slices.IndexFunc(t.Rows, func(row Row) bool { return row.Reason == reason }); i >= 0 {
		return &t.Rows[i]
	}
	return nil
}

// Explanation says in plain text what a reason of a condition means.
type Explanation struct {
	// Kind of the object, and the reason.
	Kind, Reason string
	// State is what an object with the reason does, and whether that counts as a failure.
	State string
	// Means is the meaning, Wakes what brings the object back to its controller, and Todo what a user can do. The last two may be empty.
	Means, Wakes, Todo string
}

// Find returns the explanation of a reason. Some reasons of an Update that waits are also reasons of its Stack. They are explained under
// the kind Stack.
func Find(kind, reason string) (Explanation, bool) {
	for _, explanation := range All() {
		if explanation.Kind == kind && explanation.Reason == reason {
			return explanation, true
		}
	}
	return Explanation{}, false
}

// All returns the explanations of all reasons.
var All = sync.OnceValue(func() (all []Explanation) {
	for _, table := range Tables() {
		wakers := table.Wakers()
		for _, row := range table.Rows {
			all = append(all, explain(table.Kind, &row, row.Wakes(wakers[row.Reason])))
			delete(wakers, row.Reason)
		}
		for _, row := range Of("Stack").Rows {
			if names, shared := wakers[row.Reason]; shared {
				all = append(all, explain(table.Kind, &row, WakerNames(names)))
			}
		}
	}
	return all
})

func explain(kind string, row *Row, wakes string) Explanation {
	return Explanation{
		Kind: kind, Reason: row.Reason, State: strings.ReplaceAll(string(row.State), "*", ""),
		Means: Plain(row.Means), Wakes: Plain(wakes), Todo: Plain(row.Todo),
	}
}

// link matches a link in Markdown to another page.
var link = regexp.MustCompile(`\[([^]]*)]\([^)]*\)`)

// Plain returns the text without links and line breaks.
func Plain(markdown string) string {
	return link.ReplaceAllString(strings.Join(strings.Fields(markdown), " "), "$1")
}
