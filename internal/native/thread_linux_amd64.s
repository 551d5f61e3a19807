//go:build !purego

#include "go_asm.h"
#include "textflag.h"

#define SYS_clone 56
#define SYS_arch_prctl 158
#define SYS_futex 202
#define ARCH_SET_FS 0x1002
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129

// Polls for a call, about 1 ms, before the thread sleeps.
#define POLLS 20000

// func startThread(flags, stack, entry uintptr) (tid int)
TEXT ·startThread(SB), NOSPLIT, $0-32
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	entry+16(FP), R12
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$SYS_clone, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, tid+24(FP)
	RET

child:
	// The thread begins without thread-local storage of Go; the loader sets up that of libc.
	MOVL	$SYS_arch_prctl, AX
	MOVL	$ARCH_SET_FS, DI
	XORL	SI, SI
	SYSCALL
	XORL	BP, BP
	XORL	DX, DX // no function to call at exit
	JMP	R12

// func serveAddress() uintptr
TEXT ·serveAddress(SB), NOSPLIT, $0-8
	LEAQ	·serve(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// serve answers calls for ever. BX is the mailbox, R13 the number of the last call. C keeps both.
// Its first answer, to call 1, reports that libc is loaded.
TEXT ·serve(SB), NOSPLIT|NOFRAME, $0
	MOVQ	·box(SB), BX
	ANDQ	$~15, SP
	SUBQ	$96, SP // room for arguments 7 to 16; 16 bytes aligned at each call
	MOVL	$1, R13
	JMP	answer

poll:
	MOVL	$POLLS, R12

again:
	MOVL	mailbox_request(BX), AX
	CMPL	AX, R13
	JNE	called
	PAUSE
	DECL	R12
	JNZ	again
	MOVL	$1, AX
	XCHGL	AX, mailbox_asleep(BX)
	MOVL	$SYS_futex, AX // returns at once if request has changed
	LEAQ	mailbox_request(BX), DI
	MOVL	$FUTEX_WAIT_PRIVATE, SI
	MOVL	R13, DX
	XORL	R10, R10
	SYSCALL
	XORL	AX, AX
	XCHGL	AX, mailbox_asleep(BX)
	JMP	poll

called:
	MOVL	AX, R13
	MOVQ	(mailbox_args+48)(BX), AX // arguments 7 to 16 go to the stack
	MOVQ	AX, 0(SP)
	MOVQ	(mailbox_args+56)(BX), AX
	MOVQ	AX, 8(SP)
	MOVQ	(mailbox_args+64)(BX), AX
	MOVQ	AX, 16(SP)
	MOVQ	(mailbox_args+72)(BX), AX
	MOVQ	AX, 24(SP)
	MOVQ	(mailbox_args+80)(BX), AX
	MOVQ	AX, 32(SP)
	MOVQ	(mailbox_args+88)(BX), AX
	MOVQ	AX, 40(SP)
	MOVQ	(mailbox_args+96)(BX), AX
	MOVQ	AX, 48(SP)
	MOVQ	(mailbox_args+104)(BX), AX
	MOVQ	AX, 56(SP)
	MOVQ	(mailbox_args+112)(BX), AX
	MOVQ	AX, 64(SP)
	MOVQ	(mailbox_args+120)(BX), AX
	MOVQ	AX, 72(SP)
	MOVQ	(mailbox_args+0)(BX), DI
	MOVQ	(mailbox_args+8)(BX), SI
	MOVQ	(mailbox_args+16)(BX), DX
	MOVQ	(mailbox_args+24)(BX), CX
	MOVQ	(mailbox_args+32)(BX), R8
	MOVQ	(mailbox_args+40)(BX), R9
	MOVQ	mailbox_fn(BX), R10
	XORL	AX, AX // no vector registers, should the function be variadic
	CALL	R10
	MOVQ	AX, mailbox_result(BX)

answer:
	MOVL	R13, AX
	XCHGL	AX, mailbox_done(BX)
	CMPL	mailbox_waiting(BX), $0
	JNE	wake
	CMPL	R13, $1
	JNE	poll // the caller of call 1 sleeps without setting waiting

wake: // the caller may have returned already: a later sleep then reads done again. Only the caller clears waiting
	MOVL	$SYS_futex, AX
	LEAQ	mailbox_done(BX), DI
	MOVL	$FUTEX_WAKE_PRIVATE, SI
	MOVL	$1, DX
	SYSCALL
	JMP	poll
