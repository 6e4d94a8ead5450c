"""placeholder"""
from executors.batch import UnifiedBatch, UnifiedOutput
async def split_unified_decode(executor, batch): raise NotImplementedError
