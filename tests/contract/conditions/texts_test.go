package conditions_test

const introduction = `# Conditions and their reasons

<!-- Written by ` + updateCommand + ` from the rows in internal/report/reasons, and from the decisions in the tests of the controllers. -->

This page lists every reason of a condition of a [Stack](#stack), an [Update](#update), a [Workspace](#workspace), an
[Approval](#approval), a [Program](#program) and a [StackRollout](#stackrollout): what it means, what wakes the object, what you can do, and a test that causes it. To
find a problem by its symptom, see [troubleshooting](guides/troubleshooting.md).

The column *state* has these values:

| state | meaning |
|---|---|
| ready, succeeded | Everything works. |
| in progress | The controller works on the object. |
| waiting | Something is missing, or a problem can resolve itself. A Stack does not count this as a failed attempt, and its condition ` + "`Reconciling`" + ` is True. |
| **Stalled** | You should look at the problem. A Kustomization that waits for the object fails at once. The controller still retries what can be retried. |
| transient | A failure that usually resolves itself with the next attempt. |
| failed | A failed attempt, which the Stack retries with backoff. After three failures in a row with the same inputs, the Stack is also Stalled. |
| failed, **Stalled** at once | An attempt that cannot succeed before somebody does something. It is not counted, and the next one is ` + "`retryMaxBackoffDurationSeconds`" + ` later, a day by default. |
| interrupted; ended, not a failure | The attempt does not count as a failure. The Stack repeats it. |
| not used | The controller does not set this reason. |

An object is woken by a watch, by the end of work in the background, or by time. In addition to what the tables list, a Stack is
always woken by an edit, by a [request](spec/v1/stacks.md#triggering-an-update), by its source, and by a
[watched](spec/v1/stacks.md#changed-secrets-and-configmaps) Secret or ConfigMap that it uses. The entries for Stacks and Updates
are generated from all decisions that their controllers can make. Intervals of 30 s are set by the flag
` + "`--requeue-dependency`" + `. A *new revision* is one with [other content](spec/v1/stacks.md#which-changes-cause-an-update): a commit that
changes no file of a Stack starts nothing.

When the cause is fixed, a Stack continues without further action. [A test](../tests/e2e/recovery_test.go) causes each such problem,
fixes it without changing the Stack, and waits until the Stack is Ready.
`

// sharing is the text before the reasons that an Update shares with its Stack.
const sharing = `
An Update can also wait for the following reasons, which have the same meaning as for a [Stack](#stack). A missing Secret or
ConfigMap is checked every 2 to 30 s. Everything else is checked at growing intervals from 3 s to 5 min. A newer
artifact replaces the Update.

| reason | what wakes the Update |
|---|---|
`

// descriptions are the texts about the types of conditions, by the kind of the object.
var descriptions = map[string]string{
	"Stack": `
| condition | True | False | Unknown | absent |
|---|---|---|---|---|
| ` + "`Ready`" + ` | the source and the spec are deployed | they are not, and the reason says why | an operation other than a resync or a check for drift is running or about to start | not reconciled yet, or suspended since it was created |
| ` + "`Reconciling`" + ` | the controller works on the Stack, or waits | | | up to date, or Stalled |
| ` + "`Stalled`" + ` | you should look at the problem | | | no action is needed |
| ` + "`Drifted`" + ` | resources were changed outside of Pulumi | they were not | the last check failed | the Stack does not check for drift, or has not yet |
| ` + "`Held`" + ` | a revision waits for a [wave](spec/v1/stacks.md#waves), or an update for a [window](spec/v1/stacks.md#windows) | | | nothing waits, or not for long |

The reasons below are those of ` + "`Ready`" + `, unless they name another condition. ` + "`Stalled`" + ` has the same reason as ` + "`Ready`" + `. A
check for drift, a [resync](spec/v1/stacks.md#resync) of a Stack that is Ready, and another attempt of a Stack that is Stalled with
` + "`UpdateFailed`" + ` leave both as they are.`,
	"Update": `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Progressing`" + ` | the operation is running | the Update waits, and the reason says for what, or the operation has ended | not reconciled yet |
| ` + "`Complete`" + ` | the operation has ended | it has not ended | not reconciled yet |
| ` + "`Failed`" + ` | the operation ended without success, and the reason is the kind of error | it has not ended, or it succeeded | not reconciled yet |

An Update runs once, except for a preview that was lost with its agent before its result was recorded, which runs once more. Nothing wakes an Update after its end. If necessary, its Stack creates another one.`,
	"Workspace": `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Ready`" + ` | operations can run | they cannot, and the reason says why | not reconciled yet |
| ` + "`Reconciling`" + ` | the Workspace becomes ready: ` + "`Progressing`" + `, or ` + "`ProgressingWithRetry`" + ` if there is a problem | | Ready, or Stalled |
| ` + "`Stalled`" + ` | you should look at the problem | | no action is needed |

While an update needs the Workspace, its Stack reports the problem with ` + "`WorkspaceNotReady`" + `, ` + "`WorkspaceFailed`" + ` or
` + "`PulumiVersionTooLow`" + `. A Workspace is always woken by changes of its pod, its StatefulSet, their events, and the process of
the agent. The table lists what else wakes it.`,
	"Approval": `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Accepted`" + ` | the Approval counts | it does not, and the reason says why | not seen yet |

The condition of an Approval does not change after it was set. To decide again, create another Approval.`,
	"Program": `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Ready`" + ` | the Program can be run | it cannot | no controller [manages it](spec/v1/programs.md#several-controllers) |
| ` + "`Stalled`" + ` | the Program cannot be run until you edit it | | it can be run |

Problems that only Pulumi can detect are reported by the Stack.`,
	"StackRollout": `
| condition | True | False | absent |
|---|---|---|---|
| ` + "`Ready`" + ` | nothing is wrong, also while waves are updated | it does not go on before somebody does something, or the source has nothing | not reconciled yet |
| ` + "`Complete`" + ` | all waves are complete with the target | some are not | not reconciled yet |
| ` + "`Reconciling`" + ` | ` + "`Ready`" + ` is False, and it goes on by itself when its source is there, or fewer Stacks fail | | it is Ready, or Stalled |
| ` + "`Stalled`" + ` | you should look at the problem | | no action is needed |

Besides the reasons below, it has those of its source, which have the same meaning as for a [Stack](#stack).`,
}
