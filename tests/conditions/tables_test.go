package conditions_test

const introduction = `# Conditions and their reasons

<!-- Written by ` + updateCommand + ` from the rows in tests/conditions, and from what the controllers' own tests find out. -->

This page has every reason that a condition of a Stack, an Update, a Workspace or a Program can have: what it means, what brings the
object back, what to do, and a test that provokes it on real servers. How to look for what is wrong, and what to do by symptom, is in
[troubleshooting](guides/troubleshooting.md).

- *waits*: something is missing that may come by itself. No attempt is used up, ` + "`Reconciling`" + ` is True.
- **Stalled**: somebody should have a look, so whoever waits for the object fails fast. Where something else than an edit can help, the
  controller goes on to try.
- *transient*: usually over at the next try.
- *failure that counts*: an attempt that is repeated with growing pauses; the third in a row on the same inputs makes the Stack Stalled.
- *no failure*: it is repeated, and does not count.

What wakes an object is a watch, or time. Besides what is named, an edit and a
[request](spec/v1/stacks.md#triggering-an-update) always wake a Stack, and so do its source, and a
[watched](spec/v1/stacks.md#changed-secrets-and-configmaps) Secret or ConfigMap that it uses. The columns of Stack and Update are found
out from all decisions that their controllers can make. "30 s" is the flag ` + "`--requeue-dependency`" + `.

Every cause that goes away without anybody touching the Stack is noticed: a test breaks and mends
[each of them](../tests/e2e/recovery_test.go), and waits for the Stack to be Ready.
`

// sharing stands before the reasons that an Update shares with its Stack.
const sharing = `
It waits for these, too, which mean what they mean for the [Stack](#stack). A Secret or ConfigMap is looked for every 2 to 30 s, anything
else after 3 s at first and every 5 min in the end; a newer artifact replaces the Update.

| reason | what wakes it |
|---|---|
`

// tables are all parts of the page.
var tables = []table{
	{
		kind: "Stack",
		conditions: `
| condition | True | False | Unknown | absent |
|---|---|---|---|---|
| ` + "`Ready`" + ` | deployed as the spec and the source ask | not, and the reason says why | an operation is on its way | not looked at yet |
| ` + "`Reconciling`" + ` | the controller goes on by itself | | | settled, or Stalled |
| ` + "`Stalled`" + ` | somebody should have a look | | | nobody is needed |

The reason is that of ` + "`Ready`" + `, unless another condition is named; ` + "`Stalled`" + ` has the same one.`,
		constants: []string{"api/pulumi/v1/condition_types.go"},
		wakers:    "internal/stack/testdata/wakers.json",
		rows:      stackRows,
	},
	{
		kind: "Update",
		conditions: `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Progressing`" + ` | the operation runs | it waits, and the reason says for what; or it ended | not looked at yet |
| ` + "`Complete`" + ` | it ended | it has not ended | as above |
| ` + "`Failed`" + ` | it ended without success, and the reason says of which kind | it has not ended, or succeeded | as above |

An Update that ended is not run again, so nothing wakes it: its Stack makes another one. Whether a failure counts is for the Stack.`,
		constants: []string{"api/auto/v1alpha1/condition_types.go", "internal/update/reasons.go"},
		wakers:    "internal/update/testdata/wakers.json",
		rows:      updateRows,
	},
	{
		kind: "Workspace",
		conditions: `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Ready`" + ` | operations can run | not now, and the reason says why | not looked at yet |
| ` + "`Reconciling`" + ` | it is being made ready: ` + "`Progressing`" + ` when nothing is wrong, ` + "`ProgressingWithRetry`" + ` when something is | | Ready, or Stalled |
| ` + "`Stalled`" + ` | somebody should have a look | | nobody is needed |

The Stack shows trouble as ` + "`WorkspaceNotReady`" + `, ` + "`WorkspaceFailed`" + ` or ` + "`PulumiVersionTooLow`" + `. What happens to the pod, its
StatefulSet, their events and the agent's process wakes a Workspace; where the column is empty, that is all that is needed.`,
		constants: []string{"api/auto/v1alpha1/condition_types.go"},
		rows:      workspaceRows,
	},
	{
		kind: "Program",
		conditions: `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Ready`" + ` | it can be run | it cannot | no controller [looks after it](spec/v1/programs.md#several-controllers) |
| ` + "`Stalled`" + ` | it cannot be run until somebody edits it | | it can be run |

What only pulumi can find wrong in a program is told by the Stack.`,
		constants: []string{"api/pulumi/v1/condition_types.go"},
		rows:      programRows,
	},
}
